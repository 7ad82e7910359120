"""Rate limits and clients' own budgets on real Kafka, through a head that is killed."""

import numpy as np
import pytest

from schemas import LedgerKind, decode_ledger_record, decode_reject_record

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CLIENTS = ("a", "b", "c")


def ledger(deployment):
    return [decode_ledger_record(m.value()) for m in deployment.read(deployment.names.ledger)]


def rejects(deployment):
    return [decode_reject_record(m.value()) for m in deployment.read(deployment.names.rejects)]


def counts(deployment):
    """By window, how many updates are in the release: there is no noise in it."""
    weight = deployment.plan.count_weight
    return {window: int(r.vector[-1]) // weight for (_, window), r in deployment.releases().items()}


def publish(deployment, *clients):
    for client in clients:
        deployment.send(client, deployment.update(client, np.ones(12, np.int8)))
    deployment.producer().flush(30)


def test_a_client_pays_for_what_used_its_update_and_releases_outlive_its_budget(deploy):
    deployment = deploy(cluster_count=1, horizon_windows=3, scope="client")
    allowed = deployment.plan.windows_allowed
    head = deployment.start_head()
    deployment.wait_until_owned()

    def used(client):
        """How many windows used the client's updates: all of its updates but the refused ones."""
        refused = {r.offset for r in rejects(deployment) if r.client_id == client}
        sent = [
            m
            for m in deployment.updates()
            if m.key() == client.encode() and m.offset() not in refused
        ]
        return len({deployment.plan.window_of(m.timestamp()[1]) for m in sent})

    def spend(client, is_enough):
        def probe():
            publish(deployment, client)
            return is_enough()

        deployment.eventually(f"{client} has sent enough", probe)

    # One of them takes part once, across a head's death; the other until it is refused.
    spend("a", lambda: sum(counts(deployment).values()) >= 1)
    head.kill()
    head = deployment.start_head()
    deployment.wait_until_owned(head)

    def is_refused(client):
        return any(
            r.reason == "client_exhausted" and r.client_id == client for r in rejects(deployment)
        )

    spend("b", lambda: is_refused("b"))
    head.kill()
    head = deployment.start_head()
    deployment.wait_until_owned(head)
    before = len(deployment.releases())
    spend("b", lambda: len(deployment.releases()) >= before + allowed + 2)
    # The last update may not have been judged yet; one that was counted would never be refused.
    deployment.eventually("b took part as often as its budget allows", lambda: used("b") == allowed)
    assert sum(counts(deployment).values()) == used("a") + used("b")
    assert not is_refused("a")

    assert head.stop() == 0
    kinds = {record.kind for record in ledger(deployment)}
    assert kinds == {LedgerKind.GENESIS, LedgerKind.RELEASE}
    verified = deployment.sdp("ledger", "verify", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_rate_limit_holds_windows_back_and_lets_them_go_on_later(deploy):
    deployment = deploy(cluster_count=1, horizon_windows=1000, epsilon=8.0, hour_epsilon=0.45)
    (name, windows, cap) = deployment.plan.sliding_caps[0]
    allowed = cap // deployment.plan.charge_units
    assert (name, windows) == ("hour", 3601)
    assert 1 <= allowed <= 10
    head = deployment.start_head()
    deployment.wait_until_owned()

    def throttled():
        return [r for r in ledger(deployment) if r.kind is LedgerKind.THROTTLED]

    deployment.eventually("a window is held back", throttled)
    head.kill()
    head = deployment.start_head()
    deployment.wait_until_owned(head)
    before = len(throttled())
    deployment.eventually("and so are later ones", lambda: len(throttled()) >= before + 2)
    assert len(deployment.releases()) == allowed
    assert "holds window" in head.log.read_text()
    verified = deployment.sdp("ledger", "verify", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
