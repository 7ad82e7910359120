"""Who counts in a window, however many clients have come and gone."""

from dataclasses import replace

import numpy as np
import pytest

from schemas import Update, encode_update
from stream.aggregation import admission
from stream.aggregation.admission import Admission
from stream.aggregation.client_numbers import ClientNumbers
from stream.aggregation.intake import WindowIntake
from stream.aggregation.together import Together
from stream.aggregation.validation import Reason
from stream.aggregation.vector_sum import VectorAdder
from stream.aggregation.window import WindowSum
from stream.budget.client_budgets import ClientBudgets
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

PLAN = PrivacyPlan(
    name="admission",
    dimension=3,
    cluster_count=1,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=7,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=3,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)


class Cluster:
    """One cluster whose windows are opened by hand."""

    def __init__(self, plan: PrivacyPlan = PLAN, clients: ClientBudgets | None = None) -> None:
        self.plan = plan
        self.sums: dict[int, WindowSum] = {}
        self.numbers = ClientNumbers()
        self.admission = Admission(plan, self.sums, self.numbers, clients)

    def admit(self, window: int, *clients: str) -> tuple[list[int], dict[int, Reason]]:
        """Offer a sound update of each; return the places that count and why others do not."""
        together = Together(len(clients), [], lambda _: b"")
        for place, client in enumerate(clients):
            together.take_parsed(place, client.encode(), is_below_clip=False)
        together.number_parsed(self.numbers)
        if window not in self.sums:
            self.sums[window] = WindowSum(self.plan, VectorAdder(self.plan), 0)
        admitted = self.admission.admit(together, self.sums[window], window)
        return sorted(admitted), {place: why.reason for place, (_, why) in together.refused.items()}


def test_a_client_counts_once_in_each_window():
    cluster = Cluster()
    assert cluster.admit(0, "a", "b", "a") == ([0, 1], {2: Reason.DUPLICATE})
    assert cluster.admit(0, "c", "b") == ([0], {1: Reason.DUPLICATE})
    assert cluster.admit(1, "c", "b") == ([0, 1], {})
    assert [total.exact_sum[-1] for total in cluster.sums.values()] == [3 * 7, 2 * 7]


def test_nobody_is_admitted_where_nobody_is_sound():
    assert Cluster().admit(0) == ([], {})


def test_a_client_that_owes_its_budget_to_open_windows_does_not_count():
    plan = replace(PLAN, scope="client", horizon_windows=2)
    cluster = Cluster(plan, ClientBudgets(plan.cap_units))
    assert cluster.admit(0, "a", "b") == ([0, 1], {})
    assert cluster.admit(1, "a") == ([0], {})
    assert cluster.admit(2, "a", "b") == ([1], {0: Reason.CLIENT_EXHAUSTED})


def test_clients_that_no_open_window_has_are_forgotten_and_the_others_are_not(monkeypatch):
    monkeypatch.setattr(admission, "_MOST_CLIENTS", 5)
    cluster = Cluster()
    cluster.admit(0, "a", "b", "c")
    cluster.admit(1, "d", "b")
    cluster.admit(2, "e", "a")
    cluster.admission.forget_clients()
    assert len(cluster.numbers) == 5
    cluster.admit(2, "f")
    del cluster.sums[0]
    cluster.admission.forget_clients()
    assert sorted(map(cluster.numbers.name, range(5))) == [b"a", b"b", b"d", b"e", b"f"]
    assert cluster.admit(1, "a", "b", "c", "d") == (
        [0, 2],
        {1: Reason.DUPLICATE, 3: Reason.DUPLICATE},
    )
    assert cluster.admit(2, "a", "e", "f", "d") == (
        [3],
        dict.fromkeys(range(3), Reason.DUPLICATE),
    )
    assert [total.exact_sum[-1] for total in cluster.sums.values()] == [4 * 7, 4 * 7]


@pytest.mark.parametrize("most", [4, 1 << 17])
def test_a_head_whose_clients_change_all_the_time_keeps_few_numbers(monkeypatch, most):
    monkeypatch.setattr(admission, "_MOST_CLIENTS", most)
    intake = WindowIntake(PLAN, 0, next_window=0, position=0, max_open_windows=3)
    vector = np.array([1, 2, 3], np.int8)
    offset, largest = 0, 0
    for window in range(20):
        at_ms = PLAN.window_end_ms(window) - 1
        # Each comes twice, in this window and the next one, and once more than it may.
        names = [f"client-{n}" for n in range(10 * window, 10 * window + 20)]
        values = [encode_update(Update(PLAN.plan_id, name, 0, vector)) for name in names]
        records = [(offset + place, at_ms, value) for place, value in enumerate(values * 2)]
        offset += len(records)
        outcome = intake.offer(records)
        assert outcome.accepted == 20
        assert [each.rejection.reason for each in outcome.rejected] == [Reason.DUPLICATE] * 20
        assert intake.exact_sum().tolist() == [20, 40, 60, 20 * 7]
        intake.close_window(None, None)
        largest = max(largest, len(intake._open._numbers))
    assert largest == (210 if most > 210 else 20)
