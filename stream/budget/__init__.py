"""What may still be spent: charges are admitted before anything noisy exists."""

from .ledger import Ledger

__all__ = ["Ledger"]
