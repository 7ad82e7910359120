"""Guessing games against the real head: how often can it be told whether a canary took part?

Each attack is a guessing game about whether canary clients took part, decided by fair coins. If
what the head releases is mu-GDP for one client, no strategy is right more often than with
probability ``Phi(mu / 2)``, whatever else is known, so the share of right guesses bounds mu from
below: ``mu_hat = 2 Phi^-1(share)``, with an exact (Clopper-Pearson) interval. The games:

``canaries``
    One vector coordinate for each canary, with the largest value that one coordinate can hold;
    the guess is ``y_i > value / 2``. Thousands of games in one release. Coordinates have
    independent noise, so the number of right guesses is at most binomial (Steinke, Nasr and
    Jagielski 2023, in the case where it is exact). The count weight is 1 here, so that the count,
    which all canaries share and no guess looks at, is nothing of the claim.
``two_worlds``
    One canary or none, through two windows of a head. Its vectors v and -v have norm exactly D,
    and the count weight is D too: half of what the head must charge for comes from the count. The
    guess is the likelihood ratio's, the inner product with (v, weight) summed over the windows,
    so noise calibrated to the vector alone is off by a factor sqrt 2. The canary cheats: it also
    sends a vector that is too long, and everything twice.
``difference``
    The same releases, the second window's vector subtracted from the first's: what noise that
    repeats from window to window would cancel in.

What is compared: the charge that the heads' ledgers record, as mu, against what the attack shows.
The audit plan is the given one with other shapes: one cluster, few coordinates, a bound and
weights as the games need them, and its lifetime budget spent in few equal windows without sliding
limits (`audit_plan`), each of about mu <= 2, so that the whole (epsilon, delta) is put to the test
rather than a window's small part of it. Where clipping is adaptive, its bit is a third part of what
the two worlds look at, beside vector and count. Where the budget is small, a canary is a group of k
clients that act as one: a group's mu is k times a client's, so ``mu_hat / k`` is what is compared
(Dong, Roth and Su 2019, Theorem 2.14).

Discrete Gaussian noise is claimed to be rho-zCDP, not mu-GDP. What guesses can show of it is that
of the continuous Gaussian of its variance, mu = sqrt(2 rho), to 1e-5 of the share of right guesses
at the sizes of these games, so the same comparison is made.

A third look needs no statistics: `audited_head.Findings`, over all those releases, over some
windows of the plan's own schedule, over one release whose noise is odd and beyond 2^60, where
float64 addition would lose its last bits, and, where each client has a budget of its own, over a
client that goes on when its budget is spent.

References:
    Steinke, Nasr, Jagielski (2023). https://arxiv.org/abs/2305.08846
    Nasr et al. (2023), tight auditing. https://arxiv.org/abs/2302.07956
    Dong, Roth, Su (2019). https://arxiv.org/abs/1905.02383
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.special import (  # type: ignore[import-untyped]  # scipy ships no types
    betainccinv,
    betaincinv,
    ndtri,
)

from .audit_plan import audit_plan, canary_sum, canary_updates
from .audited_head import AuditedHead, Findings, MakeNoise
from .errors import PlanError
from .privacy.accounting import UNITS_PER_RHO
from .privacy.keystream import Entropy
from .privacy.plan import PrivacyPlan

ATTACKS = ("canaries", "two_worlds", "difference")

_SCHEDULED_WINDOWS = 20
# Where guessing games tell most about mu for the work they need.
_MU_PER_GAME = 2.0
_WINDOWS = 2
_DIMENSION = 16  # D^2 = 16 (D/4)^2: a vector of norm exactly D, of which twice can be sent
_MOST_CANARIES = 512
_MOST_CLIENTS = 1 << 15
_MOST_UPDATES = 120_000


@dataclass(frozen=True, slots=True)
class Attack:
    """What one kind of guessing game found.

    Attributes:
        name: One of `ATTACKS`.
        games: How many were played.
        right: How many were won.
        clients: How many clients acted as one.
        charged_mu: What the ledgers charged for one game's releases, as mu of one client.
        mu_lower: Lower bound of mu of one client, from the games.
        mu_upper: Upper bound of what these guesses can show; infinite if all were right.
    """

    name: str
    games: int
    right: int
    clients: int
    charged_mu: float
    mu_lower: float
    mu_upper: float


def mu_interval(right: int, games: int, miss: float) -> tuple[float, float]:
    """Return the exact bounds on ``2 Phi^-1(p)``, each wrong with probability at most ``miss``.

    Args:
        right: Games won, each with probability p.
        games: Games played.
        miss: Probability of error of either bound.

    References:
        Clopper, Pearson (1934).
    """
    lower = float(betaincinv(right, games - right + 1, miss)) if right else 0.0
    upper = float(betainccinv(right + 1, games - right, miss)) if right < games else 1.0
    return max(0.0, 2 * float(ndtri(lower))), max(0.0, 2 * float(ndtri(upper)))


class _LargeNoise:
    """Odd numbers beyond 2^60: noise that only integer addition keeps whole."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def sample(self, variance: Fraction, size: int) -> NDArray[np.int64]:
        """Return ``size`` of them, whatever the variance, with signs in turn."""
        words = np.frombuffer(self._entropy(8 * size), np.int64)
        large = words >> 4 & (1 << 60) - 1 | 1 << 60 | 1
        large[1::2] *= -1
        return large


class Auditor:
    """Plays the games under a plan, and keeps count of what they cost.

    Attributes:
        lifetime_mu: The plan's claim for its whole budget.
        findings: Faults that were seen on the way.
        releases: Number of windows released.
        updates: Number of updates offered.
    """

    def __init__(
        self, plan: PrivacyPlan, entropy: Entropy, make_noise: MakeNoise, miss: float
    ) -> None:
        """Set up; each bound of each attack is wrong with probability ``miss``.

        Raises:
            PlanError: no attack of a bearable size could see anything.
        """
        self.lifetime_mu = math.sqrt(2 * plan.cap_units / UNITS_PER_RHO)
        self.findings = Findings()
        self.releases = 0
        self.updates = 0
        self._plan = plan
        self._entropy = entropy
        self._make_noise = make_noise
        self._miss = miss
        # A game takes this part of the budget, and as many clients as make it worth looking at.
        self._games_per_life = math.ceil((self.lifetime_mu / _MU_PER_GAME) ** 2)
        game_mu = self.lifetime_mu / math.sqrt(self._games_per_life)
        self._clients = max(1, round(_MU_PER_GAME / game_mu))
        if self._clients > _MOST_CLIENTS:
            raise PlanError(
                f"mu = {self.lifetime_mu:.2g} for a whole life is too little to be seen: only "
                f"{self._clients:,} clients that act as one would stand out from the noise"
            )

    def canaries(self, games: int) -> tuple[Attack]:
        """Play many games in each release, one for each coordinate."""
        games = max(1, min(games, 2 * _MOST_UPDATES // self._clients))
        count = max(1, min(games, _MOST_CANARIES, _MOST_CLIENTS // self._clients))
        value = self._plan.coordinate_limit
        plan = self._audit_plan(count, value, 1, expected=count * self._clients)
        head = AuditedHead(plan, self._make_noise, self._entropy, self.findings)
        updates = [
            self._updates(plan, vector, i)
            for i, vector in enumerate(value * np.eye(count, dtype=np.int64))
        ]
        right = windows = 0
        while windows * count < games:
            coins = self._coins(count)
            taking_part = [data for i in np.flatnonzero(coins) for data in updates[i]]
            exact = self._exact(plan, coins * value, int(coins.sum()))
            released = head.release(taking_part, exact)
            right += int(((released[:count] > self._clients * value / 2) == coins).sum())
            windows += 1
        charged_mu = self._finish(head, windows=1)
        return (self._attack("canaries", windows * count, right, charged_mu),)

    def worlds(self, games: int) -> tuple[Attack, Attack]:
        """Play games of two windows each, and look at the releases in two ways."""
        games = max(1, min(games, _MOST_UPDATES // (3 * self._clients)))
        quarter = self._plan.coordinate_limit // 4
        vector = quarter * np.resize((1, -1), _DIMENSION)
        bound, signs = 4 * quarter, (1, -1)
        plan = self._audit_plan(_DIMENSION, bound, bound, windows=_WINDOWS, expected=self._clients)
        head = AuditedHead(plan, self._make_noise, self._entropy, self.findings)
        cheating = [self._cheating(plan, sign * vector) for sign in signs]
        exact = [self._exact(plan, sign * vector, 1) for sign in signs]
        # Vector, count and perhaps the clip bit have the same norm.
        parts = plan.release_size - plan.coordinate_count + 1
        matched = difference = 0
        for coin in self._coins(games):
            first, second = (
                head.release(updates if coin else [], coin * total)
                for updates, total in zip(cheating, exact, strict=True)
            )
            apart = (first - second)[:_DIMENSION] @ vector
            together = apart + bound * (first + second)[_DIMENSION:].sum()
            matched += (together > self._clients * _WINDOWS * bound**2 * parts / 2) == coin
            difference += (apart > self._clients * bound**2) == coin
        charged_mu = self._finish(head, windows=_WINDOWS)
        return (
            self._attack("two_worlds", games, int(matched), charged_mu),
            self._attack("difference", games, int(difference), charged_mu),
        )

    def add_large_noise(self) -> None:
        """Release once with noise that float64 cannot hold."""
        # So many expected clients make the release's type int64.
        plan = self._small_plan(expected=10**6)
        head = AuditedHead(plan, _LargeNoise, self._entropy, self.findings)
        vector = np.arange(_DIMENSION)
        head.release(self._updates(plan, vector), self._exact(plan, vector, 1))
        self._finish(head, windows=1)

    def follow_schedule(self) -> None:
        """Release some windows under the plan's own schedule, as far as it goes."""
        plan = replace(
            self._small_plan(),
            schedule_spec=self._plan.schedule_spec,
            horizon_windows=self._plan.horizon_windows,
        )
        head = AuditedHead(plan, self._make_noise, self._entropy, self.findings)
        vector = np.arange(_DIMENSION)
        for _ in range(_SCHEDULED_WINDOWS):
            updates = canary_updates(plan, vector, clients=1, canary=0)
            head.release(updates, canary_sum(plan, vector, 1))
        self._finish(head, windows=1)

    def overspend(self) -> None:
        """Let a client go on when its own budget is spent: no release may use its updates."""
        plan = self._small_plan()
        if plan.scope != "client" or plan.windows_allowed is None:
            return
        head = AuditedHead(plan, self._make_noise, self._entropy, self.findings, has_one_life=True)
        vector = np.arange(_DIMENSION)
        for window in range(plan.windows_allowed + 2):
            is_paid = window < plan.windows_allowed
            updates = canary_updates(plan, vector, clients=1, canary=0)
            head.release(updates, canary_sum(plan, is_paid * vector, int(is_paid)))
        self._finish(head, windows=1)

    def _audit_plan(
        self, dimension: int, bound: int, weight: int, *, windows: int = 1, expected: int
    ) -> PrivacyPlan:
        horizon = windows * self._games_per_life
        return audit_plan(self._plan, dimension, bound, weight, horizon, expected)

    def _small_plan(self, expected: int = 1) -> PrivacyPlan:
        return self._audit_plan(_DIMENSION, self._plan.coordinate_limit, 1, expected=expected)

    def _updates(
        self, plan: PrivacyPlan, vector: NDArray[np.int64], canary: int = 0
    ) -> list[bytes]:
        return canary_updates(plan, vector, self._clients, canary)

    def _exact(
        self, plan: PrivacyPlan, vector: NDArray[np.int64], canaries: int
    ) -> NDArray[np.int64]:
        return canary_sum(plan, vector, canaries) * self._clients

    def _cheating(self, plan: PrivacyPlan, vector: NDArray[np.int64]) -> list[bytes]:
        """Return what a cheating canary sends: too much, what is right, and that again."""
        honest = self._updates(plan, vector)
        return [*self._updates(plan, 2 * vector), *honest, *honest]

    def _coins(self, count: int) -> NDArray[np.int64]:
        packed = np.frombuffer(self._entropy(math.ceil(count / 8)), np.uint8)
        return np.unpackbits(packed)[:count].astype(np.int64)

    def _finish(self, head: AuditedHead, *, windows: int) -> float:
        """Return what ``windows`` windows were charged on average, as mu of one client."""
        head.finish()
        self.releases += head.windows
        self.updates += head.updates
        # A ledger that charged nothing is a fault, and no reason to divide by zero.
        spent_units = max(head.spent_units, 1)
        return math.sqrt(2 * spent_units / UNITS_PER_RHO * windows / head.windows)

    def _attack(self, name: str, games: int, right: int, charged_mu: float) -> Attack:
        lower, upper = mu_interval(right, games, self._miss)
        clients = self._clients
        return Attack(name, games, right, clients, charged_mu, lower / clients, upper / clients)
