"""An empirical check of the guarantee: attack the real head, and compare with what it charges.

`audit_games` plays the games whose outcome bounds mu from below, `audited_head` watches each
release; here is what they found, beside the claim. A head whose promise is kept passes with a
probability of at least the confidence; what passes is not proven, only not refuted.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from .audit_games import ATTACKS, Attack, Auditor
from .audited_head import MakeNoise
from .privacy.accounting import gdp_epsilon
from .privacy.calibration import PrivacyFilter
from .privacy.keystream import Entropy
from .privacy.noise import noise_source
from .privacy.plan import PrivacyPlan

_GAMES_PER_WORLD = 20  # a game of two worlds costs two releases, a canary a small part of one
_EPSILON_SLACK = 2e-6  # gdp_epsilon rounds up to the next 1e-6


@dataclass(frozen=True, slots=True)
class Audit:
    """The claim of a plan beside what attacks on the real head found.

    Attributes:
        claimed_mu: The lifetime claim: sqrt(2 R) for the cap R. Rounded Gaussian noise is claimed
            to be so much GDP; discrete noise to be R-zCDP, which guesses cannot tell from it.
        privacy_filter: Which of the two the claim is.
        epsilon_claimed: The plan's epsilon.
        delta: The plan's delta.
        confidence: With this probability, all bounds of all attacks hold.
        attacks: What each attack found.
        faults: What is wrong in itself, and how often it was seen.
        releases: Number of windows that were released for it.
        updates: Number of updates that were offered for it.
    """

    claimed_mu: float
    privacy_filter: PrivacyFilter
    epsilon_claimed: float
    delta: float
    confidence: float
    attacks: tuple[Attack, ...]
    faults: Mapping[str, int]
    releases: int
    updates: int

    @property
    def strongest(self) -> Attack:
        """The attack that proves most."""
        return max(self.attacks, key=lambda found: found.mu_lower / found.charged_mu)

    @property
    def mu_lower(self) -> float:
        """What the strongest attack proves, scaled from its games to the lifetime budget."""
        return self.claimed_mu * self.strongest.mu_lower / self.strongest.charged_mu

    @property
    def mu_upper(self) -> float:
        """What the strongest attack can show at most; infinite if it was always right."""
        return self.claimed_mu * self.strongest.mu_upper / self.strongest.charged_mu

    @property
    def epsilon_lower(self) -> float:
        """The epsilon at ``delta`` of Gaussian noise of `mu_lower`, rounded down."""
        if self.mu_lower == 0:
            return 0.0
        return max(0.0, gdp_epsilon(self.mu_lower, self.delta) - _EPSILON_SLACK)

    @property
    def passed(self) -> bool:
        """Whether nothing contradicts the claim."""
        return self.mu_lower <= self.claimed_mu and not self.faults


def audit(
    plan: PrivacyPlan,
    entropy: Entropy,
    *,
    make_noise: MakeNoise | None = None,
    games: int = 40_000,
    confidence: float = 0.999999,
) -> Audit:
    """Attack the head that ``plan`` would get, in process.

    Args:
        plan: The plan whose claim is put to the test.
        entropy: Decides the coins and the noise.
        make_noise: The noise source under audit; by default what ``plan`` names.
        games: How many games of `canaries` to play, a twentieth as many of the others; fewer
            where a small budget makes each game expensive.
        confidence: Probability that all bounds hold.

    Raises:
        PlanError: the budget is too small for anything to be seen.
        ValueError: ``games`` is below 1, or ``confidence`` not between 0 and 1.
    """
    if games < 1:
        raise ValueError(f"{games} games show nothing: play at least 1")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}: it must lie between 0 and 1")
    if make_noise is None:
        make_noise = partial(noise_source, plan.noise)
    auditor = Auditor(plan, entropy, make_noise, (1 - confidence) / (2 * len(ATTACKS)))
    attacks = (*auditor.canaries(games), *auditor.worlds(math.ceil(games / _GAMES_PER_WORLD)))
    auditor.add_large_noise()
    auditor.follow_schedule()
    auditor.overspend()
    return Audit(
        claimed_mu=auditor.lifetime_mu,
        privacy_filter=plan.privacy_filter,
        epsilon_claimed=plan.epsilon,
        delta=plan.delta,
        confidence=confidence,
        attacks=attacks,
        faults=dict(auditor.findings.faults),
        releases=auditor.releases,
        updates=auditor.updates,
    )
