"""The faults, by name: each is injected on a stage under load, and leaves it to recover.

A fault tells the stage when it strikes, and returns when every dead worker has been replaced. How
long it takes from the strike until all clusters release again is the recovery.
"""

import signal
from collections.abc import Callable, Mapping
from functools import partial

from deployment import Worker
from stage import Stage, planted

from agents.protocol_steps import Step

Fault = Callable[[Stage], None]

# At these a head or a global agent may be; genesis is there once only, on a stage of its own.
HEAD_STEPS = tuple(step for step in Step if step not in (Step.MERGE, Step.GENESIS))
GLOBAL_STEPS = tuple(
    step for step in Step if step not in (Step.CHARGE, Step.PUBLISH, Step.PUBLISHED, Step.GENESIS)
)
# Those of a release, in the middle of which a stopped head goes on as a zombie.
RELEASE_STEPS = (
    Step.CHARGE,
    Step.PRODUCE,
    Step.SEND_OFFSETS,
    Step.COMMIT,
    Step.COMMITTED,
    Step.PUBLISH,
)
_ONCE = (Step.FENCE, Step.SETTLE, Step.READ_STATE, Step.RESTORE, Step.CONSUME)


def crash_head(step: Step, stage: Stage) -> None:
    """One of the heads is killed at a step."""
    victim = stage.start_head(*planted(step, _nth(stage, step), "kill"))
    _wait_for_death(stage, victim, step)
    stage.replace_the_dead()


def crash_global(step: Step, stage: Stage) -> None:
    """The global agent is killed at a step."""
    stage.merger.kill()
    stage.merger = stage.start_global(*planted(step, _nth(stage, step), "kill"))
    _wait_for_death(stage, stage.merger, step, is_of_model=True)
    stage.replace_the_dead()


def freeze_head(step: Step, stage: Stage) -> None:
    """A head stands still in a release until others have its clusters, then goes on."""
    zombie = stage.start_head(*planted(step, _nth(stage, step), "stop"))
    stage.wait_until_planted(zombie, step)
    stage.strike()
    stage.wait_for_release()
    zombie.process.send_signal(signal.SIGCONT)
    stage.wait_for_release()
    _end(zombie)


def freeze_global(step: Step, stage: Stage) -> None:
    """The global agent stands still in a step until another merges, then goes on."""
    stage.merger.kill()
    zombie = stage.start_global(*planted(step, _nth(stage, step), "stop"))
    stage.wait_until_planted(zombie, step)
    stage.strike(is_of_model=True)
    stage.merger = stage.start_global()
    stage.wait_for("another agent has the model", lambda: _owns_model(stage.merger))
    zombie.process.send_signal(signal.SIGCONT)
    stage.wait_for_release()
    _end(zombie)


def hang_in_transaction(stage: Stage) -> None:
    """A head whose heartbeats go on hangs in a transaction for longer than the broker waits."""
    hanging = stage.start_head(*planted(Step.SEND_OFFSETS, 2, "delay", 17.0))
    stage.wait_until_planted(hanging, Step.SEND_OFFSETS)
    stage.strike()
    stage.wait_for_release()
    _end(hanging)
    stage.replace_the_dead()


def same_identity(stage: Stage) -> None:
    """A head in a consumer group of its own takes the identities of all others, again and again."""
    rogue = stage.start_head("--other-group")
    stage.wait_for(
        "the rogue has had all clusters",
        lambda: rogue.log.read_text().count("head of cluster") >= 4 or _is_over(rogue),
    )
    rogue.kill()
    # Its offsets are another group's: what it released counts, and the next release tells ours.
    stage.strike()

    window = stage.deployment.current_window()

    def all_release_again() -> bool:
        # A head that learns by its next release that it was fenced ends, as late as that.
        stage.replace_the_dead()
        return all(stage.ear.newest.get(cluster, -1) >= window for cluster in range(4))

    stage.wait_for("all clusters release again", all_release_again)


def kill_head(stage: Stage) -> None:
    """A head is killed wherever it is."""
    stage.strike()
    stage.random.choice(stage.heads).kill()
    stage.replace_the_dead()


def terminate_head(stage: Stage) -> None:
    """A head is asked to stop, and finishes what it does."""
    stage.strike()
    head = stage.random.choice(stage.heads)
    if (code := head.stop()) != 0:
        raise AssertionError(f"{head.log.name} ended with {code}: {head.log.read_text()[-2000:]}")
    stage.replace_the_dead()


def kill_everything(stage: Stage) -> None:
    """All heads and the global agent are killed at once."""
    stage.strike()
    for worker in (*stage.heads, stage.merger):
        worker.kill()
    stage.replace_the_dead()


def scale(stage: Stage) -> None:
    """One head, then four, then two."""
    stage.strike()
    for count in (1, 4, 2):
        while len(stage.heads) > count:
            stage.heads.pop().stop()
        while len(stage.heads) < count:
            stage.heads.append(stage.start_head())
        stage.deployment.wait_until_owned(*stage.heads)


def rolling_restart(stage: Stage) -> None:
    """Every worker is stopped and started again, one after the other."""
    stage.strike()
    for index in range(len(stage.heads)):
        stage.heads[index].stop()
        stage.heads[index] = stage.start_head()
        stage.wait_for("the group is whole", lambda at=index: _is_ready(stage.heads[at]))
    stage.merger.stop()
    stage.replace_the_dead()


def kill_broker(stage: Stage) -> None:
    """The only broker is killed in whatever phase it is in, and comes back."""
    stage.strike()
    stage.brokers.kill()
    stage.brokers.restart()


def kill_broker_and_head(stage: Stage) -> None:
    """The only broker and a head are killed together."""
    stage.strike()
    stage.brokers.kill()
    stage.random.choice(stage.heads).kill()
    stage.brokers.restart()
    stage.replace_the_dead()


def kill_broker_in_transaction(step: Step, stage: Stage) -> None:
    """The broker is killed while a head stands still in a transaction, which goes on after it."""
    head = stage.start_head(*planted(step, 2, "delay", 2.0))
    stage.wait_until_planted(head, step)
    stage.strike()
    stage.brokers.kill()
    stage.brokers.restart()
    stage.wait_for_release()
    _end(head)


def all_faults() -> Mapping[str, Fault]:
    """Return every fault by name."""
    faults: dict[str, Fault] = {}
    for step in HEAD_STEPS:
        faults[f"head killed at {step}"] = partial(crash_head, step)
    for step in GLOBAL_STEPS:
        faults[f"global agent killed at {step}"] = partial(crash_global, step)
    for step in RELEASE_STEPS:
        faults[f"head frozen at {step}"] = partial(freeze_head, step)
    for step in (Step.MERGE, Step.PRODUCE, Step.COMMIT, Step.COMMITTED):
        faults[f"global agent frozen at {step}"] = partial(freeze_global, step)
    for step in (Step.PRODUCE, Step.SEND_OFFSETS, Step.COMMIT, Step.COMMITTED):
        faults[f"broker killed at {step}"] = partial(kill_broker_in_transaction, step)
    return faults | {
        "head hangs in a transaction": hang_in_transaction,
        "two heads of one identity": same_identity,
        "head killed anywhere": kill_head,
        "head stopped": terminate_head,
        "everything killed": kill_everything,
        "heads scaled 1, 4, 2": scale,
        "rolling restart": rolling_restart,
        "broker killed": kill_broker,
        "broker and head killed": kill_broker_and_head,
    }


def _nth(stage: Stage, step: Step) -> int:
    """Return which passing of a step is struck; an opening may pass some of them once only."""
    return 1 if step in _ONCE else stage.random.randint(1, 4)


def _wait_for_death(stage: Stage, worker: Worker, step: Step, *, is_of_model: bool = False) -> None:
    stage.wait_for(f"a worker dies at {step}", lambda: worker.process.poll() is not None)
    stage.strike(is_of_model=is_of_model)
    if worker.process.returncode != -signal.SIGKILL:
        raise AssertionError(f"{worker.log.name} ended by itself: {worker.log.read_text()[-2000:]}")


def _end(worker: Worker) -> None:
    if worker.process.poll() is None:
        worker.kill()


def _is_over(worker: Worker) -> bool:
    return worker.process.poll() is not None


def _owns_model(worker: Worker) -> bool:
    return bool((worker.health() or {}).get("owns_model"))


def _is_ready(worker: Worker) -> bool:
    return worker.health() is not None
