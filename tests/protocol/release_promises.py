"""What the release protocol promises (PRIVACY 1.8), as predicates of a state.

I9 (nothing but integers guards the budget) and I10 (a fork or a copy of the process never reuses
noise) are not about the order of steps. I9 is held by tests/test_pitfalls.py, 17 to 19, and
tests/stream/budget/test_ledger.py; I10 by tests/test_pitfalls.py, 11 and 24, and by
tests/stream/privacy/test_noise.py, where two processes draw different noise after a fork. What
reused noise would do is I4.
"""

import itertools
from collections.abc import Callable, Mapping
from functools import cache

from kafka_model import FENCE_RECORD
from release_opening import is_chain, releases_in
from release_state import CLOSING, LEDGER, OUTBOX, UPDATES, Record, Setup, State
from writer_steps import REFUSED, WRITING

from agents.protocol_steps import Step


def i1_nothing_is_public_before_its_charge_is_durable(state: State) -> bool:
    return all(each in state.decided for each in state.public)


def i2_a_window_has_one_public_content(state: State) -> bool:
    return len({each.window for each in state.public}) == len(state.public)


def i3_no_aborted_bytes_are_readable(state: State) -> bool:
    aborted = [each for each in state.logs[OUTBOX].aborted if each not in state.decided]
    return not any(each in state.public for each in aborted)


def i4_no_noise_hides_two_sums(state: State) -> bool:
    contents = {(each.draw, each.window, each.updates) for each in releases_in(state)}
    return len(contents) == len({draw for draw, _, _ in contents})


def i5_a_sealed_window_is_not_summed_again(state: State) -> bool:
    """No update counts in a window that is not its own, and no client twice in one."""
    return all(
        {window for _, window in total} <= {each.window} and len(set(total)) == len(total)
        for each in state.decided
        for total in [[UPDATES[offset] for offset in each.updates]]
    )


def i6_one_chain_of_records_seals_each_window_once(state: State) -> bool:
    # After a rollback it is the operator who broke it; what may follow then is I7.
    return state.is_rolled_back or is_chain(_ledger(state))


def i7_all_that_was_charged_stays_spent(state: State) -> bool:
    """Each release was charged with every release before it in mind, seen by anybody or not."""
    return all(each.spent >= place for place, each in enumerate(state.decided, start=1))


def i8_spent_is_the_sum_of_the_charges(state: State) -> bool:
    """Nothing is given back, and nothing is charged that was not released."""
    ledger = _ledger(state)
    return state.is_rolled_back or all(
        after.spent - before.spent == (after.release is not None)
        for before, after in itertools.pairwise(ledger)
    )


def each_update_counts_in_its_window(state: State) -> bool:
    """Every window that was released holds all that was accepted for it."""
    return all(each.updates == accepted(each.window) for each in state.decided)


@cache
def accepted(window: int) -> tuple[int, ...]:
    """Return the offsets of a window's updates, each client's first one."""
    first: dict[str, int] = {}
    for offset, (client, appended) in enumerate(UPDATES):
        if appended == window:
            first.setdefault(client, offset)
    return tuple(sorted(first.values()))


def no_fence_is_ever_committed(state: State) -> bool:
    """The record that settles a partition stays aborted."""
    return not any(FENCE_RECORD in log.committed for log in state.logs)


def only_an_old_backup_is_refused(state: State) -> bool:
    """Crashes, zombies and brokers never lead to what a person has to look at."""
    return state.is_rolled_back or not any(head.at == REFUSED for head in state.processes)


INVARIANTS: Mapping[str, Callable[[State], bool]] = {
    "I1": i1_nothing_is_public_before_its_charge_is_durable,
    "I2": i2_a_window_has_one_public_content,
    "I3": i3_no_aborted_bytes_are_readable,
    "I4": i4_no_noise_hides_two_sums,
    "I5": i5_a_sealed_window_is_not_summed_again,
    "I6": i6_one_chain_of_records_seals_each_window_once,
    "I7": i7_all_that_was_charged_stays_spent,
    "I8": i8_spent_is_the_sum_of_the_charges,
    "sums": each_update_counts_in_its_window,
    "fences": no_fence_is_ever_committed,
    "refusals": only_an_old_backup_is_refused,
}


def within_cap(setup: Setup) -> Callable[[State], bool]:
    """Return the promise that nothing is released beyond the cap."""

    def holds(state: State) -> bool:
        return len(state.decided) <= setup.cap

    return holds


def is_complete(state: State, setup: Setup) -> bool:
    """Say whether every window that the budget pays for is public, and the ledger then closed."""
    windows = min(setup.windows, setup.cap)
    if {each.window for each in state.public} != set(range(windows)):
        return False
    records = [each for each in state.logs[LEDGER].all if isinstance(each, Record)]
    return windows == setup.windows or any(each.kind == CLOSING for each in records)


def _ledger(state: State) -> list[Record]:
    return [each for each in state.logs[LEDGER].committed if isinstance(each, Record)]


def _is_overtaken(state: State) -> bool:
    zombies = (head for head in state.processes if head.at in WRITING and head.epoch < state.epoch)
    windows = {each.window for each in state.public}
    return any(head.newest is not None and head.newest.window + 1 in windows for head in zombies)


def _is_hung(state: State) -> bool:
    records = (each for each in state.logs[LEDGER].open if isinstance(each, Record))
    return any(each.release in state.public for each in records)


def _has_two_draws(state: State) -> bool:
    releases = set(releases_in(state))
    return len({each.window for each in releases}) < len(releases)


LANDMARKS: Mapping[str, Callable[[State], bool]] = {
    "a zombie is in the release of a window that another head has made public": _is_overtaken,
    "a release is public whose charge no reader sees": _is_hung,
    "both heads are about to publish": lambda state: all(
        head.at == Step.PUBLISH for head in state.processes
    ),
    "a head refuses": lambda state: any(head.at == REFUSED for head in state.processes),
    "a release is on its way": lambda state: bool(state.late),
    "two draws of one window exist": _has_two_draws,
    "a fenced writer is still heard": lambda state: any(
        0 <= log.epoch < state.epoch for log in state.logs
    ),
}
