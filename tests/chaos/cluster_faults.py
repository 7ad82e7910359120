"""Faults of a cluster of three brokers, by name; the stage must stand on a `KafkaCluster`.

As in `faults`: each is injected under load, and returns when its harm is done and every broker
is back. Recovery is measured from the moment of the harm, or of its end where nothing can be
released before. Heads and global agents have to outlive their brokers, and a fault fails where one
of them has not; only who was away for longer than its session, and so was fenced, is replaced.
"""

from collections.abc import Callable, Mapping
from functools import partial

from kafka_cluster import CONTROLLER, KafkaCluster
from stage import Stage, planted

from agents.partition import group_of, head_identity
from agents.protocol_steps import Step

Fault = Callable[[Stage], None]

# In the middle of these a broker is taken away.
TRANSACTION_STEPS = (Step.PRODUCE, Step.SEND_OFFSETS, Step.COMMIT, Step.COMMITTED, Step.PUBLISH)
_DELAY_S = 3.0
_WINDOWS_AWAY = 6


def kill_leader(step: Step, stage: Stage) -> None:
    """The leader of a ledger is killed while a head stands still in a release."""
    cluster = _stand_still(stage, step)
    _kill_and_restart(stage, _brokers(stage).leader_of(stage.deployment.names.ledger, cluster))


def kill_transaction_coordinator(step: Step, stage: Stage) -> None:
    """The coordinator of a head's transactions is killed while a head stands still in a release."""
    cluster = _stand_still(stage, step)
    identity = head_identity(stage.deployment.plan, cluster)
    _kill_and_restart(stage, _brokers(stage).transaction_coordinator(identity))


def kill_group_coordinator(stage: Stage) -> None:
    """The coordinator of the heads' consumer group is killed."""
    group = group_of(stage.deployment.plan)
    _kill_and_restart(stage, _brokers(stage).group_coordinator(group))


def kill_any(stage: Stage) -> None:
    """A broker is killed in whatever phase everything is in."""
    _kill_and_restart(stage, stage.random.choice(_brokers(stage).nodes))


def kill_two(stage: Stage) -> None:
    """Two of three brokers are killed: all partitions are below min.insync.replicas."""
    for node in stage.random.sample(_brokers(stage).nodes, 2):
        _brokers(stage).kill(node)
    _let_windows_pass(stage)
    stage.strike()
    _heal(stage)


def pause_two(stage: Stage) -> None:
    """Two of three brokers stand still, at first without anybody knowing it, and go on."""
    for node in stage.random.sample(_brokers(stage).nodes, 2):
        _brokers(stage).pause(node)
    _let_windows_pass(stage)
    stage.strike()
    _heal(stage)


def kill_all(stage: Stage) -> None:
    """All brokers are killed at once; no replica has a living memory of anything."""
    for node in _brokers(stage).nodes:
        _brokers(stage).kill(node)
    stage.strike()
    _heal(stage)


def pause_leader(stage: Stage) -> None:
    """A leader stands still until another has its place, and goes on as what it was."""
    brokers, ledger = _brokers(stage), stage.deployment.names.ledger
    node = brokers.leader_of(ledger, 0)
    stage.strike()
    brokers.pause(node)
    stage.wait_for("the ledger has another leader", lambda: brokers.leader_of(ledger, 0) != node)
    _let_windows_pass(stage)
    _heal(stage)


def pause_briefly(stage: Stage) -> None:
    """A broker stands still for less than its session: it stays the leader, and holds all up."""
    node = stage.random.choice(_brokers(stage).nodes)
    _brokers(stage).pause(node)
    _let_windows_pass(stage, 3)
    stage.strike()
    _heal(stage)


def rolling_restart(stage: Stage) -> None:
    """Every broker is stopped and started again, one after the other."""
    brokers = _brokers(stage)
    stage.strike()
    for node in brokers.nodes:
        brokers.stop_node(node)
        brokers.restart(node)
        brokers.wait_until_in_sync()
    _heal(stage)


def kill_controller(stage: Stage) -> None:
    """The controller is killed; releases go on without it, until it comes back."""
    stage.strike()
    _brokers(stage).kill(CONTROLLER)
    stage.wait_for_release()
    _heal(stage)


def kill_controller_and_leader(stage: Stage) -> None:
    """The controller is killed, then a leader, whom nobody can replace until it is back."""
    brokers = _brokers(stage)
    node = brokers.leader_of(stage.deployment.names.ledger, 0)
    brokers.kill(CONTROLLER)
    brokers.kill(node)
    _let_windows_pass(stage)
    stage.strike()
    _heal(stage)


def all_cluster_faults() -> Mapping[str, Fault]:
    """Return every fault by name."""
    faults: dict[str, Fault] = {}
    for step in TRANSACTION_STEPS:
        faults[f"leader killed at {step}"] = partial(kill_leader, step)
        faults[f"coordinator killed at {step}"] = partial(kill_transaction_coordinator, step)
    return faults | {
        "one of three brokers killed": kill_any,
        "group coordinator killed": kill_group_coordinator,
        "two of three brokers killed": kill_two,
        "two of three brokers paused": pause_two,
        "three of three brokers killed": kill_all,
        "leader paused past its session": pause_leader,
        "broker paused briefly": pause_briefly,
        "rolling restart of the brokers": rolling_restart,
        "controller killed": kill_controller,
        "controller and leader killed": kill_controller_and_leader,
    }


def _brokers(stage: Stage) -> KafkaCluster:
    if not isinstance(stage.brokers, KafkaCluster):
        raise TypeError("these faults need a cluster of brokers")
    return stage.brokers


def _stand_still(stage: Stage, step: Step) -> int:
    """Let a head stand still at a step for some seconds; return one of its clusters."""
    stage.heads[0].stop()
    head = stage.heads[0] = stage.start_head(
        *planted(step, stage.random.randint(2, 4), "delay", _DELAY_S)
    )
    stage.wait_until_planted(head, step)
    return stage.random.choice(stage.deployment.owned_clusters(head) or [0])


def _kill_and_restart(stage: Stage, node: int) -> None:
    stage.strike()
    _brokers(stage).kill(node)
    _brokers(stage).restart(node)
    _heal(stage)


def _let_windows_pass(stage: Stage, count: int = _WINDOWS_AWAY) -> None:
    """Wait by the clock: nothing may be released meanwhile."""
    end = stage.deployment.current_window() + count
    stage.wait_for("windows pass", lambda: stage.deployment.current_window() > end)


def _heal(stage: Stage) -> None:
    """Bring all brokers back; fail where a worker has ended that nobody had replaced before."""
    _brokers(stage).heal()
    for worker in (*stage.heads, stage.merger):
        code, told = worker.process.poll(), worker.log.read_text()
        if code is not None and not (code == 1 and "FencedError" in told):
            raise AssertionError(f"{worker.log.name} ended with {code}: {told}")
    stage.replace_the_dead()
