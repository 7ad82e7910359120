"""Which of the updates that are sound count: one of each client in a window, who can pay."""

from collections.abc import Collection

import numpy as np

from stream.budget.client_budgets import ClientBudgets, client_key
from stream.privacy.plan import PrivacyPlan

from .client_numbers import ClientNumbers
from .together import Together
from .validation import Reason, Rejection
from .window import WindowSum

# Clients that keep their numbers though no open window has them, a few MB.
_MOST_CLIENTS = 1 << 17


class Admission:
    """Counts clients into windows. One thread at a time.

    Attributes:
        clients: What each client has spent before the oldest window, where each has a budget.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        sums: dict[int, WindowSum],
        numbers: ClientNumbers,
        clients: ClientBudgets | None,
    ) -> None:
        """Set up.

        Args:
            plan: The plan.
            sums: The open windows; others open and close them.
            numbers: The numbers under which windows know clients.
            clients: See the class.
        """
        self.clients = clients
        self._plan = plan
        self._sums = sums
        self._numbers = numbers
        self._most_clients = _MOST_CLIENTS

    def admit(self, together: Together, total: WindowSum, window: int) -> Collection[int]:
        """Count the clients whose updates are sound, once each.

        Args:
            together: The updates; why others do not count is noted there.
            total: What they are counted into.
            window: Its window.

        Returns:
            The places of the updates that count.
        """
        clients = together.clients
        numbers = np.fromiter(clients.values(), np.int32, len(clients))
        if self.clients is None and numbers.size and total.are_new(numbers):
            total.count(numbers, len(together.below_clip & clients.keys()))
            return clients.keys()
        return {
            place for place in sorted(clients) if self._is_admitted(together, place, total, window)
        }

    def forget_clients(self) -> None:
        """Let go of the numbers of clients whom no open window has, where they are very many.

        Numbers change by this: no `Together` may have any.
        """
        count = len(self._numbers)
        if count <= self._most_clients:
            return
        are_kept = np.zeros(count, np.bool_)
        for total in self._sums.values():
            are_kept |= total.members(count)
        self._numbers.keep(are_kept)
        for total in self._sums.values():
            total.keep(are_kept)
        # Not again at once, where the windows have more.
        self._most_clients = max(_MOST_CLIENTS, 2 * len(self._numbers))

    def _is_admitted(self, together: Together, place: int, total: WindowSum, window: int) -> bool:
        number = together.clients[place]
        client_id = self._numbers.name(number).decode()
        if total.has(number):
            why = Rejection(Reason.DUPLICATE, f"already counted in window {window}")
            together.refuse(place, client_id, why)
            return False
        if self.clients is not None:
            key = client_key(self._plan.plan_id, client_id)
            if not self._can_pay(self.clients, key, window):
                why = Rejection(Reason.CLIENT_EXHAUSTED, "the client's budget is spent")
                together.refuse(place, client_id, why)
                return False
            total.client_keys.add(key)
        total.count(np.array([number], np.int32), place in together.below_clip)
        return True

    def _can_pay(self, clients: ClientBudgets, key: int, window: int) -> bool:
        # Windows that are summed but not sealed are as good as paid: all of them are released.
        others = (total for each, total in self._sums.items() if each != window)
        owed = sum(key in total.client_keys for total in others)
        return clients.may_pay(key, (owed + 1) * self._plan.charge_units)
