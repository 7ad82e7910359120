"""What the public topic says of a cluster's budget: a ledger must not be older than that."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from schemas import MalformedMessageError, TopicNames, decode_release
from stream.privacy.plan import PrivacyPlan

from .kafka_edge import read_tail

# A release is looked for among this many of the newest ones a cluster, then among more.
_RELEASES_PER_CLUSTER = 4


@dataclass(frozen=True, slots=True)
class PublicCharge:
    """What the header of a public release says of its charge."""

    cluster: int
    sequence: int
    spent_units: int


def newest_public_charge(
    config: Mapping[str, str], names: TopicNames, plan: PrivacyPlan, cluster: int
) -> PublicCharge | None:
    """Return what the newest public release of the cluster says, however far back it is.

    A cluster may have been closed for long while others went on, so the topic is read back
    until a release of this one is found, or to its beginning.

    Raises:
        KafkaException: the broker cannot be asked.
    """
    count = _RELEASES_PER_CLUSTER * plan.cluster_count
    while True:
        tail = read_tail(config, names.releases, 0, count, _charge_of(plan))
        ours = [each for each in tail.values if each is not None and each.cluster == cluster]
        if ours or tail.is_complete:
            return max(ours, key=lambda charge: charge.sequence, default=None)
        count *= _RELEASES_PER_CLUSTER


def _charge_of(plan: PrivacyPlan) -> Callable[[bytes], PublicCharge | None]:
    def keep(value: bytes) -> PublicCharge | None:
        """Keep the header of a release of this plan, and nothing of its vector."""
        try:
            release = decode_release(value)
        except MalformedMessageError:
            return None  # every reader drops it; it is not ours
        if release.plan_id != plan.plan_id:
            return None
        return PublicCharge(release.cluster, release.sequence, release.spent_units)

    return keep
