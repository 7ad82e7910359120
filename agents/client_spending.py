"""What clients have spent of their own budgets, in numbers that stay inside the boundary."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from schemas import LedgerKind, LedgerRecord, MalformedMessageError, decode_participation
from stream.budget.client_budgets import ClientBudgets
from stream.participation_log import rebuild
from stream.privacy.plan import PrivacyPlan


@dataclass(frozen=True, slots=True)
class ClientSpending:
    """How much of their budgets the clients of one cluster have spent. Secret, all of it.

    Attributes:
        clients: How many have spent anything.
        largest_units: What the client that spent most has spent, in units of 2^-60 zCDP.
        median_units: What half of them have spent at most.
        at_cap: How many cannot pay for another window, and are refused.
    """

    clients: int
    largest_units: int
    median_units: int
    at_cap: int

    @classmethod
    def of(cls, budgets: ClientBudgets, charge_units: int) -> "ClientSpending":
        """Return what ``budgets`` say; ``charge_units`` is what a window costs."""
        _, spent = budgets.snapshot()
        in_order = np.sort(spent)
        return cls(
            clients=in_order.size,
            largest_units=int(in_order[-1]) if in_order.size else 0,
            median_units=int(in_order[(in_order.size - 1) // 2]) if in_order.size else 0,
            at_cap=budgets.exhausted_count(charge_units),
        )


def newest_participation(records: Iterable[LedgerRecord]) -> tuple[int, bytes]:
    """Return the number and the digest of the newest record that says who took part.

    Args:
        records: A ledger's newest records, oldest first. Genesis and the closing record say
            nothing of it.
    """
    newest = (0, b"")
    for record in records:
        if record.kind in (LedgerKind.RELEASE, LedgerKind.THROTTLED):
            newest = record.sequence, record.participation_digest
    return newest


def budgets_at(
    plan: PrivacyPlan, cluster: int, values: Iterable[bytes], sequence: int, digest: bytes
) -> ClientBudgets:
    """Return the clients' budgets as they stood at a ledger record.

    Args:
        plan: The plan.
        cluster: The cluster.
        values: Its participation records as they stand in the topic, which may have grown since
            the ledger was read.
        sequence: The number of the ledger record, as `newest_participation` finds it.
        digest: Its participation digest.

    Raises:
        LedgerError: they do not fit together.
    """
    known = _up_to(plan, cluster, sequence, values)
    return rebuild(plan.cap_units, known, plan.plan_id, cluster, sequence, digest)


def _up_to(
    plan: PrivacyPlan, cluster: int, sequence: int, values: Iterable[bytes]
) -> Iterator[bytes]:
    """Yield all but what the cluster's head wrote later; of foreign bytes `rebuild` will tell."""
    for data in values:
        try:
            record = decode_participation(data)
        except MalformedMessageError:
            yield data
            continue
        is_ours = (record.plan_id, record.cluster) == (plan.plan_id, cluster)
        if not is_ours or record.sequence <= sequence:
            yield data
