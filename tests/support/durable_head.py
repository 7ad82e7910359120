"""The durable half of a head, in the test's own process: what it commits, one window at a time."""

import os
import time

from confluent_kafka import Producer
from deployment import Deployment, now_ms

from agents.partition import ClusterOpener, OpenedCluster, outgoing
from agents.protocol_steps import Watcher, nobody
from agents.settings import Settings
from agents.transactions import OutgoingRecord
from stream.cluster_head import SealedCell
from stream.privacy.noise import RoundedGaussian


class DurableHead:
    """A head of one cluster: opens it, seals windows, commits and, where asked, publishes them.

    It is in no consumer group, so it commits no offsets.

    Attributes:
        deployment: The deployment.
        opened: The cluster, as it was opened last.
        acknowledged: The releases that were committed, by window.
    """

    def __init__(
        self, deployment: Deployment, cluster: int = 0, *, watch: Watcher = nobody
    ) -> None:
        self.deployment = deployment
        self.acknowledged: dict[int, bytes | None] = {}
        self._cluster = cluster
        settings = Settings(
            bootstrap_servers=deployment.bootstrap_servers,
            plan=deployment.plan_file,
            request_timeout_s=5,
        )
        self._opener = ClusterOpener(
            settings,
            deployment.plan,
            deployment.config,
            RoundedGaussian(os.urandom),
            1 << 20,
            watch=watch,
        )

    def open(self) -> OpenedCluster:
        self.opened = self._opener.open(self._cluster)
        return self.opened

    def seal(self, position: int | None = None) -> SealedCell:
        """Return the next window, sealed, as soon as its time is over.

        ``position``: how far its updates were read; none of them by default.
        """
        head = self.opened.head
        if position is not None:
            head.advance(position)
        while not head.is_ready():
            window = head.needs_end_offset(now_ms())
            if window is None:
                time.sleep(0.005)
            else:
                head.expect(window, head.position)
        return head.seal(now_ms())

    def records(self, cell: SealedCell) -> list[OutgoingRecord]:
        return outgoing(self.deployment.names, cell)

    def release(self, position: int | None = None, *, is_public: bool = False) -> SealedCell:
        """Seal and commit a window."""
        cell = self.seal(position)
        self.opened.writer.write(self.records(cell))
        self.opened.head.commit(cell)
        self.acknowledged[cell.window] = cell.release
        if is_public:
            self.publish(cell.release)
        return cell

    def publish(self, release: bytes | None) -> None:
        producer = Producer(self.deployment.config)
        producer.produce(self.deployment.names.releases, release, str(self._cluster))
        assert producer.flush(30) == 0
