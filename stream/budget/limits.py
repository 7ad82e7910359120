"""Sliding limits: how much a cluster may spend in an hour or a day, under its lifetime cap."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from stream.errors import LedgerError


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A cap on what any so many consecutive windows spend together.

    Attributes:
        name: What the plan calls it; also the label of whatever reports it.
        windows: How many consecutive windows it looks at, at least 1.
        cap_units: What they may spend together, in units of 2^-60 zCDP, at least 1.
    """

    name: Literal["hour", "day"]
    windows: int
    cap_units: int

    def __post_init__(self) -> None:
        """Refuse a limit that looks at nothing or admits nothing."""
        if self.windows < 1 or self.cap_units < 1:
            raise ValueError(
                f"the {self.name} limit admits {self.cap_units} units in {self.windows} windows: "
                "both must be at least 1"
            )


class SlidingLimits:
    """The newest charges of one cluster, and whether its limits admit another one.

    Guarantee: for every limit, the charges of any ``windows`` consecutive windows sum to at most
    ``cap_units``, in exact integers. For a fixed run of that many windows this is a filter over
    adaptively chosen events, as the lifetime cap is one for all of them, so the limit's cap
    converts to epsilon in the same way. That is w-event privacy: whatever a client sends within
    such a run, wherever the run begins, is hidden from all that is ever released to the degree
    of the limit. A calendar hour's budget, set back on the hour, would let twice as much through
    in the hour around it.

    What it does not protect: what spans one window more (an hour that begins within a window
    touches one more than the windows of an hour, so a plan's limits count that one too), and a
    client as such. Its updates of different runs add up, without an end but the lifetime cap, and
    data that it trains on again in a later run is spent again.

    Nothing secret is looked at: a window that is refused says no more than the charges did,
    which are public. Memory is one integer for each window of the longest limit, and a window
    costs a constant number of steps for each limit, however long it is.

    References:
        Kellaris, Papadopoulos, Xiao, Papadias (2014), Differentially private event sequences
        over infinite streams. https://doi.org/10.14778/2732977.2732989
    """

    __slots__ = ("_limits", "_newest", "_next", "_spent")

    def __init__(self, limits: tuple[RateLimit, ...], charges: Iterable[int]) -> None:
        """Continue after ``charges``.

        Args:
            limits: The limits, the one to be named first being first.
            charges: What the newest consecutive windows cost, oldest first, 0 for one without a
                release: all but one of the longest limit's windows, or the whole history.

        Raises:
            LedgerError: the charges themselves break a limit.
        """
        self._limits = limits
        # A ring with room for the longest limit's windows, and each limit's sum over its newest
        # windows but one: those that the next window would stand in one run with.
        self._newest = [0] * max((limit.windows for limit in limits), default=1)
        self._next = 0
        self._spent = [0] * len(limits)
        for units in charges:
            self.push(units)

    def refusing(self, units: int) -> RateLimit | None:
        """Return the first limit that a charge of ``units`` for the next window would break."""
        for limit, spent in zip(self._limits, self._spent, strict=True):
            if spent + units > limit.cap_units:
                return limit
        return None

    def push(self, units: int) -> None:
        """Note that the next window cost ``units``, once that is durable; 0 for a throttled one.

        Raises:
            LedgerError: the charge is negative or breaks a limit; nothing was noted.
        """
        if units < 0:
            raise LedgerError(f"a window cannot have cost {units} units")
        limit = self.refusing(units)
        if limit is not None:
            raise LedgerError(
                f"a charge of {units} units breaks the {limit.name} limit of {limit.cap_units} "
                f"units in {limit.windows} windows: the ledger was written under other limits; "
                "do not start, compare the ledger topic with a backup"
            )
        size = len(self._newest)
        self._newest[self._next] = units
        for index, each in enumerate(self._limits):
            # The oldest of the run that the pushed window ends: no run with the next one has it.
            leaving = self._newest[(self._next - each.windows + 1) % size]
            self._spent[index] += units - leaving
        self._next = (self._next + 1) % size

    def copy(self) -> "SlidingLimits":
        """Return the same limits after the same charges; what is pushed to one stays there."""
        twin = SlidingLimits(self._limits, ())
        twin._newest, twin._next, twin._spent = list(self._newest), self._next, list(self._spent)
        return twin


class Forecast:
    """Which of the next windows a cluster's limits will admit, where all cost the same.

    Who collects updates for a window must know it beforehand: a window that is held back charges
    nobody, and whether a client can pay for the one after it must not depend on whether the head
    has come to seal the first one. It follows from public numbers alone.
    """

    __slots__ = ("_admitted", "_limits", "_twin", "_units")

    def __init__(self, limits: SlidingLimits, units: int) -> None:
        """Look ahead from ``limits`` as they are now; valid until a charge is pushed to them.

        Args:
            limits: The limits, after all windows that are sealed.
            units: What each window costs, in units of 2^-60 zCDP.
        """
        self._limits = limits
        self._units = units
        self._twin: SlidingLimits | None = None
        self._admitted: list[bool] = []

    def admits(self, ahead: int) -> bool:
        """Say whether the window that comes ``ahead`` windows after the next one is released."""
        if self._twin is None:
            self._twin = self._limits.copy()
        while len(self._admitted) <= ahead:
            is_admitted = self._twin.refusing(self._units) is None
            self._twin.push(self._units if is_admitted else 0)
            self._admitted.append(is_admitted)
        return self._admitted[ahead]
