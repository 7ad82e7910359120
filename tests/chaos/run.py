"""Chaos: `make chaos CHAOS_FAULTS=200 CHAOS_SEED=1`.

Injects faults, one after the other, into heads, a global agent and a broker under load. After each
one everything in Kafka is verified; after each round also the sums and the model are compared with
what they are without a crash. Exit code 0 only if nothing was wrong and nothing was lost.
"""

import argparse
import json
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from cluster_faults import all_cluster_faults
from faults import Fault, all_faults
from kafka_cluster import REPLICAS, KafkaCluster
from report import Injected, as_json, last_line, table
from stage import PATIENCE_S, Stage, note

from agents.broker import Broker
from agents.native_kafka import NativeBroker

# A round has topics of its own, so that verifying them after each fault stays quick.
_FAULTS_A_ROUND = 12
_END = "end of a round"


@dataclass(frozen=True, slots=True)
class Round:
    """Faults on one stage, and the Kafka that it stands on."""

    brokers: Callable[..., Broker]
    faults: list[tuple[str, Fault]]


def rounds(count: int, seed: int, only: str = "") -> Iterator[Round]:
    """Yield which faults to inject: each kind once in random order, then each once more, ...

    Args:
        count: How many faults.
        seed: Of the order.
        only: Kinds whose name does not hold this text are left out.
    """
    chance = random.Random(seed)
    while count > 0:
        for kinds, brokers in ((all_faults(), NativeBroker), (all_cluster_faults(), KafkaCluster)):
            wanted = [item for item in kinds.items() if only in item[0]]
            turn = chance.sample(wanted, len(wanted))[:count]
            count -= len(turn)
            for begin in range(0, len(turn), _FAULTS_A_ROUND):
                yield Round(brokers, turn[begin : begin + _FAULTS_A_ROUND])


def play(stage: Stage, faults: list[tuple[str, Fault]]) -> Iterator[Injected]:
    """Inject faults on a stage; end early where one was not survived."""
    lost_before = 0
    for kind, fault in faults:
        try:
            fault(stage)
            seconds = stage.recovery_s()
            problems, lost = stage.problems()
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            yield Injected(kind, None, (traceback.format_exc(),))
            return
        if seconds is None:
            problems.append(f"no release within {PATIENCE_S:g} s")
        yield Injected(kind, seconds, tuple(problems), lost - lost_before)
        lost_before = lost
        if problems:
            return


def play_round(round_: Round, seed: int) -> Iterator[Injected]:
    """Inject faults on a stage and a Kafka of their own, and compare with a calm run."""
    with round_.brokers(say=note) as brokers:
        replicas = REPLICAS if isinstance(brokers, KafkaCluster) else 1
        stage = Stage(brokers, seed, replication_factor=replicas)
        try:
            stage.start()
            injected = []
            for one in play(stage, round_.faults):
                injected.append(one)
                yield one
            if not any(one.problems for one in injected):
                problems, lost = stage.finish()
                lost -= sum(one.updates_lost for one in injected)
                yield Injected(_END, None, tuple(problems), lost, is_fault=False)
        finally:
            stage.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Inject faults and verify what Kafka holds.")
    parser.add_argument("--faults", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="which ones, and when (default: 1)")
    parser.add_argument("--kind", default="", help="only faults whose name holds this text")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    given = parser.parse_args()
    if not any(given.kind in kind for kind in (*all_faults(), *all_cluster_faults())):
        parser.error(f"no fault has {given.kind!r} in its name")
    done: list[Injected] = []
    for number, round_ in enumerate(rounds(given.faults, given.seed, given.kind)):
        for one in play_round(round_, 1_000_003 * given.seed + number):
            done.append(one)
            seconds = "-" if one.recovery_s is None else f"{one.recovery_s:.1f} s"
            note(f"{sum(entry.is_fault for entry in done):4} {one.kind}: {seconds}")
            for problem in one.problems:
                note(f"     {problem}")
    figures = as_json(done)
    print(table(done))  # noqa: T201 - a script's output
    print(last_line(done))  # noqa: T201
    given.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return int(bool(figures["violations"] or figures["updates_lost"]))


if __name__ == "__main__":
    sys.exit(main())
