"""The guarantee, and the mathematics that it rests on.

**Unit and adjacency.** One client identity with its whole stream; neighbouring inputs differ by all
messages of one client being there or not (add-or-remove-one, `zero-out`).

**Claim.** Let R be a plan's cap. All that the clusters ever release under it, and every model made
from it, is (epsilon, delta)-differentially private for the plan's epsilon and delta, jointly and
against anyone who sees all of it, other clients included:

* with ``noise = "rounded_gaussian"`` (the default) it is sqrt(2R)-GDP, and epsilon is the exact
  conversion of that (`accounting.epsilon_from_units`);
* with ``noise = "discrete_gaussian"`` it is R-zCDP, and epsilon is the best conversion known
  (`accounting.zcdp_epsilon`). It is not sqrt(2R)-GDP
  [tests/stream/privacy/test_reference_values.py::test_the_discrete_gaussian_is_not_gdp].

The source of bits being AES-256-CTR, the claim is against computationally bounded adversaries.

**Why.**

1. *One client, one window, one vector.* An update enters a window's sum once, and only if
   ``sum g_i^2 <= D^2`` in exact integers
   [tests/stream/aggregation/test_validation.py::test_whatever_is_accepted_is_within_the_bound_and_symmetric].
   With the count coordinate of weight kappa (and, where clipping adapts, a bit coordinate of
   kappa_b (b - 1/2)), neighbouring sums differ by a vector of squared norm at most
   ``D^2 + kappa^2 + kappa_b^2/4``: the sensitivity. What happens to an update depends on itself,
   on its client's own history and on the broker's clock, never on another client's update
   [tests/stream/test_cluster_head_worlds.py::test_removing_one_client_changes_the_sums_by_its_vectors_and_nothing_else].
2. *One release.* The noise is drawn exactly, and integers are added to integers
   [tests/stream/privacy/test_mechanism.py::test_what_is_added_is_exactly_the_samplers_array].
   ``round(N(0, sigma^2))`` added to an integer is the rounding of the continuous Gaussian
   mechanism, so a release is (sensitivity / sigma)-GDP in any dimension
   [tests/stream/privacy/test_noise.py::test_an_audit_of_one_release_finds_no_more_than_the_claim].
   The discrete Gaussian makes it (sensitivity^2 / (2 sigma^2))-zCDP in any dimension (Canonne,
   Kamath, Steinke 2020). Each release has a key of its own
   [tests/stream/privacy/test_noise.py::test_each_call_draws_from_a_key_of_its_own].
3. *All windows.* A release is made only with a receipt of the cluster's ledger, which admits a
   charge ``sensitivity^2 / (2 sigma^2)``, rounded up, only below the cap
   [tests/stream/budget/test_ledger.py::test_the_total_never_passes_the_cap_and_never_falls].
   As a filter this holds for whatever chose the noise and the content of a window from earlier
   releases (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023; for zCDP Feldman and
   Zrnic 2021), so a schedule may look at released vectors (`schedule`)
   [tests/stream/privacy/test_schedule.py::test_the_ledger_never_refuses_what_a_schedule_plans].
   The limits of an hour and of a day are further filters under the cap: any run of so many windows
   stays below them
   [tests/stream/budget/test_limits.py::test_no_run_of_windows_spends_more_than_its_limit].
   They protect what a client sends within such a run, not the client.
4. *With a budget for each client* (``scope = "client"``) the filter is the client's own: it pays
   for the windows that used its updates, and an update that it cannot pay for is dropped unseen.
   Whether an update is used depends on its client's history alone, so a window that used none
   of its updates has the same law with and without the client
   [tests/stream/budget/test_client_budgets.py::test_without_one_client_all_others_are_accepted_as_before],
   and costs it nothing. Releases have no end then.
5. *All clusters.* A client belongs to one cluster by a public function of its identity, so the
   clusters compose in parallel: the largest cap counts, not the sum
   [tests/stream/privacy/test_plan.py::test_the_cluster_of_an_identity_is_pinned].
6. *The model*, the clip norm and all that else is made of releases is post-processing
   [tests/test_what_may_leave.py::test_one_client_changes_nothing_public_but_through_the_noisy_vectors].
7. *A crash* repeats work and nothing else: charge, release bytes, who took part and input offsets
   commit in one Kafka transaction to private topics, and only committed bytes are published
   [tests/integration/test_one_hot.py::test_sums_are_zeros_and_ones_though_a_head_is_killed_and_started_again].
   Where a killed broker forgets half of a transaction that it had acknowledged, the next opening
   writes it again, byte for byte
   [tests/agents/test_recovery.py::test_what_was_acknowledged_stays_whatever_a_killed_broker_forgets].

**Not claimed.** Nothing for a client behind several identities (k identities: k^2 R), for one whose
identity another one was chosen to collide with (`stream.budget.client_budgets.client_key`), for who
can read the private topics or the heads' memory, for the operator's metrics, for the time at which
a client sends. Quantization, rotation, sparsification, sampling of clients and shuffling contribute
nothing to the claim.

References:
    Dong, Roth, Su (2019), Gaussian differential privacy. https://arxiv.org/abs/1905.02383
    Balle, Wang (2018), the analytic Gaussian mechanism. https://arxiv.org/abs/1805.06530
    Canonne, Kamath, Steinke (2020), the discrete Gaussian. https://arxiv.org/abs/2004.00010
    Feldman, Zrnic (2021), individual privacy accounting. https://arxiv.org/abs/2008.11193
    Smith, Thakurta (2022), fully adaptive composition for Gaussian differential privacy.
    https://arxiv.org/abs/2210.17520
    Koskela, Tobaben, Honkela (2023), individual privacy accounting with GDP.
    https://arxiv.org/abs/2209.15596
    Kairouz, Liu, Steinke (2021), the distributed discrete Gaussian. https://arxiv.org/abs/2102.06387
"""
