"""Checks what clients paid against the ledger that charged for their windows."""

from collections.abc import Iterable, Iterator

import numpy as np

from schemas import MalformedMessageError, ParticipationKind, decode_participation
from stream.budget.client_budgets import ClientBudgets
from stream.errors import LedgerError
from stream.privacy.plan import PrivacyPlan

from .client_spending import ClientSpending, budgets_at
from .ledger_checks import ClusterAudit


def audit_participation(
    plan: PrivacyPlan, cluster: int, ledger: ClusterAudit, values: Iterable[bytes]
) -> ClientSpending | None:
    """Return what the clients of a cluster have spent; None where that cannot be told.

    What does not fit goes to ``ledger``: a delta that charges something else than the ledger's
    record of its window, a record that is missing or that no digest vouches for, a total that
    the ledger's charges cannot sum to.

    Args:
        plan: The plan, of scope ``client``.
        cluster: The cluster.
        ledger: Its ledger, read to its end before the participation topic was.
        values: What the participation topic holds of the cluster, in its order.
    """
    sequence, digest = ledger.participation
    checked = _checked(ledger, values)
    try:
        budgets = budgets_at(plan, cluster, checked, sequence, digest)
    except LedgerError as error:
        ledger.fault(str(error))
        return None
    _check_totals(plan, ledger, budgets)
    return ClientSpending.of(budgets, plan.charge_units)


def _checked(ledger: ClusterAudit, values: Iterable[bytes]) -> Iterator[bytes]:
    """Yield ``values``, after comparing the charge of each delta with the ledger's."""
    newest, _ = ledger.participation
    for data in values:
        yield data
        try:
            record = decode_participation(data)
        except MalformedMessageError:
            continue  # whoever takes it says so
        if record.kind is not ParticipationKind.DELTA or record.sequence > newest:
            continue
        charged = ledger.charge_of(record.sequence)
        if record.charge_units != charged:
            ledger.fault(
                f"record {record.sequence} charges {charged} units, but its clients paid "
                f"{record.charge_units}"
            )


def _check_totals(plan: PrivacyPlan, ledger: ClusterAudit, budgets: ClientBudgets) -> None:
    _, spent = budgets.snapshot()
    # Every window costs the same in this scope, so a total is a number of windows.
    windows, left = np.divmod(spent, np.uint64(plan.charge_units))
    releases = sum(ledger.events.values())
    if left.any() or (windows > releases).any():
        ledger.fault("a client's total is not what some of the releases cost")
