"""What may still be spent: charges are admitted before anything noisy exists.

`Ledger` guards a cluster's cap. Beside it stand `limits`, any hour's and any day's part of it, and
`client_budgets`, which guards each client's own cap instead.
"""

from .ledger import Ledger

__all__ = ["Ledger"]
