"""A run on librdkafka's mock cluster, where no Kafka can be had: what differs, and what it lacks.

``python -m agents.demo.mock head|global`` are the product's processes without the checks that
such a cluster cannot pass. Nothing else starts them so: no option and no setting of ``sdp`` does.
"""

from collections.abc import Mapping
from pathlib import Path

import click
import numpy as np
from confluent_kafka.admin import AdminClient

from agents.broker import BrokerError
from agents.plan_file import read_plan
from agents.settings import load_settings
from agents.topics import topics_of
from agents.workers import run_global, run_head
from stream.privacy.plan import PrivacyPlan

from .data import DIMENSION
from .plan import CLUSTERS

WARNING = (
    "This run is on librdkafka's mock cluster, which lives in this process. It shows the protocol, "
    "the mathematics and the processes, but not: transaction isolation (aborted records would be "
    "read, and a head that lost its cluster would not be fenced off), broker timestamps (the "
    "clients' own clocks decide which window an update is in), durability (everything is in "
    "memory, the newest 5 MB a partition). It is no evidence for a guarantee on real data."
)

# What a mock cluster keeps of a partition, and what a release takes at most: the ledgers are
# checked against all releases at the end, so all must still be there.
_KEPT_BYTES = 5 << 20
_RELEASE_BYTES = 4 * (DIMENSION + 1) + 500
MOST_WINDOWS = _KEPT_BYTES // (CLUSTERS * _RELEASE_BYTES)

_TIMEOUT_S = 10.0
_PLAN = click.option(
    "--plan",
    "plan_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The privacy plan.",
)


def check_windows(windows: int) -> None:
    """Make sure that a mock cluster can hold the releases of so many windows.

    Raises:
        BrokerError: it cannot.
    """
    if windows > MOST_WINDOWS:
        raise BrokerError(
            f"{windows} windows are too many for a mock cluster, which keeps 5 MB a partition: "
            f"use --windows {MOST_WINDOWS} or fewer, or a real Kafka (install Java 17 and Maven, "
            "or start Docker, or set KAFKA_BOOTSTRAP_SERVERS)"
        )


def create_mock_topics(config: Mapping[str, str], plan: PrivacyPlan) -> None:
    """Create the plan's topics, each with the four partitions that a mock cluster gives.

    Raises:
        KafkaException: the mock cluster does not answer.
    """
    admin = AdminClient(dict(config))
    for spec in topics_of(plan):
        # It knows no request to create a topic; to ask for one creates it.
        admin.list_topics(spec.name, timeout=_TIMEOUT_S)


@click.group()
def main() -> None:
    """Run a process of the demonstration on a mock cluster; with settings as for ``sdp``."""


@main.command()
@_PLAN
def head(plan_file: Path) -> None:
    """Run a cluster head until SIGTERM."""
    run_head(load_settings(plan=plan_file), read_plan(plan_file), unsafe_mock_broker=True)


@main.command("global")
@_PLAN
def global_(plan_file: Path) -> None:
    """Run the global agent until SIGTERM."""
    settings, plan = load_settings(plan=plan_file), read_plan(plan_file)
    run_global(settings, plan, np.zeros(DIMENSION), unsafe_mock_broker=True)


if __name__ == "__main__":
    main()
