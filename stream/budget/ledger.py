"""A cluster's budget: an exact count of what was spent, and the filter that guards its cap."""

from dataclasses import dataclass, replace

from stream.errors import BudgetExhaustedError, LedgerError
from stream.privacy.event import GaussianEvent, Receipt


@dataclass(frozen=True, slots=True)
class Ledger:
    """What one cluster has spent of its lifetime cap, in integer units of 2^-60 zCDP.

    A value: charging returns a receipt, and only `after` makes the ledger that has paid it. The
    caller moves on to that one when the charge is durable, so a crash between the two repeats
    work and never forgets a charge.

    Guarantee: receipts are given only while the total stays at or below the cap. As a filter
    over adaptively chosen Gaussian events this keeps everything released under the cap's
    guarantee (Smith and Thakurta 2022; Koskela et al. 2023), whatever chose the events.

    Where each client has a budget of its own (`ClientBudgets`), that is the filter, and releases
    have no end: `spent_units` is then the most that a client can have spent, the one that took
    part in everything, and stops at the cap.

    Attributes:
        cap_units: The lifetime cap.
        spent_units: The sum of all charges so far; with ``is_per_client`` at most the cap.
        sequence: Number of the newest record; genesis is 0.
        is_per_client: Whether the cap is each client's, not the cluster's.
    """

    cap_units: int
    spent_units: int = 0
    sequence: int = 0
    is_per_client: bool = False

    def __post_init__(self) -> None:
        """Refuse a state that no history of charges can lead to."""
        if self.cap_units < 1:
            raise LedgerError(f"a cap of {self.cap_units} units pays for nothing")
        if not 0 <= self.spent_units <= self.cap_units:
            raise LedgerError(
                f"the ledger says that {self.spent_units} of {self.cap_units} units are spent: "
                "do not start; compare the ledger topic with a backup"
            )
        if self.sequence < 0:
            raise LedgerError(f"the ledger's sequence number {self.sequence} is negative")

    def charge(self, event: GaussianEvent) -> Receipt:
        """Return a receipt for ``event``; the ledger itself does not change.

        Raises:
            BudgetExhaustedError: the cap cannot pay for ``event``.
        """
        units = event.units
        spent = self.spent_after(units)
        if spent > self.cap_units:
            raise BudgetExhaustedError(
                f"{units} units are asked, {self.cap_units - self.spent_units} are left"
            )
        return Receipt(self.sequence + 1, event, units, spent, self.cap_units)

    def spent_after(self, units: int) -> int:
        """Return what is spent after a charge of ``units``; above the cap if it cannot be paid."""
        spent = self.spent_units + units
        return min(spent, self.cap_units) if self.is_per_client else spent

    def after_no_release(self) -> "Ledger":
        """Return the ledger after a window that was sealed without a release."""
        return replace(self, sequence=self.sequence + 1)

    def after(self, receipt: Receipt) -> "Ledger":
        """Return the ledger that has paid ``receipt``.

        Raises:
            LedgerError: the receipt is not the next one of this ledger.
        """
        expected = (self.sequence + 1, self.spent_after(receipt.units), self.cap_units)
        if (receipt.sequence, receipt.spent_units, receipt.cap_units) != expected:
            raise LedgerError(f"receipt {receipt.sequence} does not follow {self.sequence}")
        return replace(self, spent_units=receipt.spent_units, sequence=receipt.sequence)
