"""The guarantee, and the mathematics that it rests on.

**Unit and adjacency.** One client identity with its whole stream; neighbouring inputs differ by all
messages of one client being there or not (add-or-remove-one, `zero-out`).

**Claim.** Let R be the cap of a cluster's ledger. All that the clusters ever release under a plan,
and every model made from it, is sqrt(2R)-GDP, hence (epsilon, delta)-differentially private for
every delta with the epsilon of `accounting.epsilon_from_units`, jointly and against anyone who
sees all of it, other clients included. The source of bits being AES-256-CTR, the claim is against
computationally bounded adversaries.

**Why.**

1. *One client, one window, one vector.* An update enters a window's sum once, and only if
   ``sum g_i^2 <= D^2`` in exact integers (`stream.aggregation.validation`). With the count
   coordinate of weight kappa, neighbouring sums differ by a vector of squared norm at most
   ``D^2 + kappa^2``: the sensitivity. What happens to an update depends on itself and on the
   broker's clock, never on another client's update.
2. *One release.* Noise is ``round(N(0, sigma^2))``, sampled exactly (`noise`). Added to integers it
   is the rounding of the continuous Gaussian mechanism, so a release is
   (sensitivity / sigma)-GDP in any dimension (`mechanism`).
3. *All windows.* A release is made only with a receipt of the cluster's ledger, which admits a
   charge ``sensitivity^2 / (2 sigma^2)``, rounded up, only below the cap. As a filter this holds
   for whatever chose the windows' content from earlier releases (Smith and Thakurta 2022;
   Koskela, Tobaben and Honkela 2023).
4. *All clusters.* A client belongs to one cluster by a public function of its identity, so the
   clusters compose in parallel: the largest cap counts, not the sum.
5. *The model* is post-processing of releases.
6. *A crash* repeats work and nothing else: charge, release bytes and input offsets commit in one
   Kafka transaction to private topics, and only committed bytes are published.

**Not claimed.** Nothing for a client behind several identities (k identities: k^2 R), for who can
read the private topics or the heads' memory, for the operator's metrics, for the time at which a
client sends. Quantization, sampling of clients and shuffling contribute nothing to the claim.

References:
    Dong, Roth, Su (2019), Gaussian differential privacy. https://arxiv.org/abs/1905.02383
    Balle, Wang (2018), the analytic Gaussian mechanism. https://arxiv.org/abs/1805.06530
    Canonne, Kamath, Steinke (2020), the discrete Gaussian. https://arxiv.org/abs/2004.00010
    Smith, Thakurta (2022), fully adaptive composition for Gaussian differential privacy.
    https://arxiv.org/abs/2210.17520
    Koskela, Tobaben, Honkela (2023), individual privacy accounting with GDP.
    https://arxiv.org/abs/2209.15596
    Kairouz, Liu, Steinke (2021), the distributed discrete Gaussian. https://arxiv.org/abs/2102.06387
"""
