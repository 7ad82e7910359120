"""What Kafka has lost of a committed transaction comes back as it was; nothing else does."""

import contextlib
import dataclasses
import threading
import time

import numpy as np
import pytest
from confluent_kafka import Producer
from durable_head import DurableHead

from agents.kafka_edge import now_ms, read_tail, retry_while_away
from agents.model_opener import ModelOpener, outgoing
from agents.settings import Settings
from agents.transactions import FencedError, TransactionFailedError
from schemas import decode_ledger_record, decode_model_state, release_digest
from stream.errors import LedgerError
from stream.ledger_chain import verify_records

pytestmark = pytest.mark.integration

_ALL = 10_000


def committed(deployment, topic):
    return read_tail(deployment.config, topic, 0, _ALL, bytes).values


def lose(deployment, records):
    """Leave ``records`` in their logs as a transaction that was never committed."""
    producer = Producer(deployment.config | {"transactional.id": f"{deployment.names.ledger}-lost"})
    producer.init_transactions(10)
    producer.begin_transaction()
    for record in records:
        producer.produce(record.topic, record.value, record.key, partition=record.partition)
    assert producer.flush(10) == 0
    producer.abort_transaction(10)


SHORT = {
    "cluster_count": 1,
    "window_length_ms": 100,
    "grace_ms": 0,
    "release_delay_ms": 0,
    "horizon_windows": 10_000,
}


@pytest.fixture
def deployment(deploy):
    return deploy(**SHORT)


@pytest.fixture
def head(deployment):
    """A head that has committed two windows."""
    head = DurableHead(deployment)
    head.open()
    head.release()
    head.release()
    return head


def test_a_transaction_that_was_written_whole_counts_although_kafka_dropped_its_end(head):
    cell = head.seal()
    lose(head.deployment, head.records(cell))
    opened = head.open()
    assert opened.head.next_window == cell.window + 1
    assert opened.unpublished.data == cell.release
    assert committed(head.deployment, head.deployment.names.ledger)[-1] == cell.ledger_record
    assert committed(head.deployment, head.deployment.names.outbox)[-1] == cell.release


def test_two_transactions_in_a_row_come_back_in_order(head):
    first = head.seal()
    head.opened.head.commit(first)
    second = head.seal()
    lose(head.deployment, head.records(first))
    lose(head.deployment, head.records(second))
    opened = head.open()
    assert opened.head.next_window == second.window + 1
    assert opened.unpublished.data == second.release


@pytest.mark.parametrize("lost", [0, 1], ids=["ledger", "outbox"])
def test_a_transaction_of_which_one_half_was_lost_is_made_whole(head, lost):
    cell = head.seal()
    records = head.records(cell)
    head.opened.writer.write([records[1 - lost]])
    lose(head.deployment, [records[lost]])
    opened = head.open()
    assert opened.head.next_window == cell.window + 1
    assert opened.unpublished.data == cell.release
    assert committed(head.deployment, records[lost].topic)[-1] == records[lost].value


def test_restoring_is_done_once(head, caplog):
    cell = head.seal()
    lose(head.deployment, head.records(cell))
    head.open()
    before = committed(head.deployment, head.deployment.names.ledger)
    assert "written again" in caplog.text
    caplog.clear()
    head.open()
    assert committed(head.deployment, head.deployment.names.ledger) == before
    assert "written again" not in caplog.text


def test_a_charge_without_its_release_was_never_acknowledged_and_does_not_count(head):
    cell = head.seal()
    lose(head.deployment, head.records(cell)[:1])
    assert head.open().head.next_window == cell.window


def test_a_record_that_does_not_follow_the_chain_is_not_taken_for_lost(head):
    first = head.seal()
    head.opened.head.commit(first)
    second = head.seal()
    lose(head.deployment, head.records(second))
    assert head.open().head.next_window == first.window


@pytest.fixture
def client_head(deploy):
    """A head of a plan in which each client has a budget, after one window."""
    head = DurableHead(deploy(**SHORT, scope="client"))
    head.open()
    head.release()
    return head


def test_what_clients_paid_comes_back_with_the_record_that_names_it(client_head):
    cell = client_head.seal()
    lose(client_head.deployment, client_head.records(cell))
    opened = client_head.open()
    assert opened.head.next_window == cell.window + 1
    topic = client_head.deployment.names.participation
    assert committed(client_head.deployment, topic)[-1] == cell.participation[0][1]
    client_head.release()
    assert client_head.open().head.next_window == cell.window + 2


def test_what_clients_paid_is_made_whole_where_it_alone_was_lost(client_head):
    cell = client_head.seal()
    *shown, participation = client_head.records(cell)
    client_head.opened.writer.write(shown)
    lose(client_head.deployment, [participation])
    assert client_head.open().head.next_window == cell.window + 1


def test_a_record_whose_clients_did_not_pay_does_not_count(client_head):
    cell = client_head.seal()
    lose(client_head.deployment, client_head.records(cell)[:2])
    assert client_head.open().head.next_window == cell.window


def test_participation_that_is_gone_stops_the_cluster(client_head):
    cell = client_head.seal()
    client_head.opened.writer.write(client_head.records(cell)[:2])
    with pytest.raises(LedgerError, match="has lost what record"):
        client_head.open()


class Sealing(threading.Thread):
    """Seals and commits window after window; opens anew whenever a transaction fails."""

    def __init__(self, head):
        super().__init__()
        self.error = None
        self._head = head
        self._stop_sealing = threading.Event()

    def run(self):
        try:
            while not self._stop_sealing.is_set():
                try:
                    self._head.release()
                except (TransactionFailedError, FencedError):
                    self._open_again()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def _open_again(self):
        """Take over once more, as a worker does: a fence that was given up may come late."""
        is_open = False
        while not is_open:
            with contextlib.suppress(FencedError):
                retry_while_away("taking over", self._head.open)
                is_open = True

    def wait_for(self, count):
        deadline = time.monotonic() + 90
        while len(self._head.acknowledged) < count and self.error is None:
            assert time.monotonic() < deadline, "nothing is committed any more"
            time.sleep(0.002)

    def stop(self):
        self._stop_sealing.set()
        self.join(60)


@pytest.mark.slow
def test_what_was_acknowledged_stays_whatever_a_killed_broker_forgets(deploy, native_broker):
    deployment = deploy(servers=native_broker.bootstrap_servers, **SHORT)
    head = DurableHead(deployment)
    head.open()
    sealing = Sealing(head)
    sealing.start()
    try:
        for _ in range(2):
            sealing.wait_for(len(head.acknowledged) + 5)
            native_broker.kill()
            native_broker.restart()
        sealing.wait_for(len(head.acknowledged) + 5)
    finally:
        sealing.stop()
    assert sealing.error is None

    head.open()
    names, plan = deployment.names, deployment.plan
    ledger = committed(deployment, names.ledger)
    verify_records(plan, 0, ledger, is_complete=True)
    paid = {record.window: record.release_digest for record in map(decode_ledger_record, ledger)}
    assert {w: paid[w] for w in head.acknowledged} == {
        window: release_digest(data) for window, data in head.acknowledged.items()
    }
    in_outbox = {release_digest(data) for data in committed(deployment, names.outbox)}
    assert {digest for digest in paid.values() if digest} <= in_outbox


@pytest.fixture
def model_opener(deployment):
    settings = Settings(bootstrap_servers=deployment.bootstrap_servers, plan=deployment.plan_file)
    weights = np.zeros(12)
    return ModelOpener(settings, deployment.plan, deployment.config, weights, 1 << 20)


def next_step(deployment, model):
    """The records of one more version."""
    stepped = model.initial(now_ms())
    snapshot = dataclasses.replace(stepped.snapshot, model_version=1)
    state = dataclasses.replace(stepped.state, model_version=1)
    return outgoing(deployment.names, dataclasses.replace(stepped, snapshot=snapshot, state=state))


@pytest.mark.parametrize("lost", [0, 1], ids=["model", "state"])
def test_a_step_of_which_one_half_was_lost_is_made_whole(deployment, model_opener, lost):
    model, writer = model_opener.open()
    records = next_step(deployment, model)
    writer.write([records[1 - lost]])
    lose(deployment, [records[lost]])
    again, _ = model_opener.open()
    assert again.version == 1
    assert committed(deployment, records[lost].topic)[-1] == records[lost].value


def test_a_step_that_nobody_saw_is_made_again(deployment, model_opener):
    model, _ = model_opener.open()
    lose(deployment, next_step(deployment, model))
    again, _ = model_opener.open()
    assert again.version == 0


def test_a_public_model_without_its_state_is_refused(deployment, model_opener):
    model, writer = model_opener.open()
    writer.write(next_step(deployment, model)[:1])
    with pytest.raises(LedgerError, match="newer backup"):
        model_opener.open()


def test_a_state_without_its_model_goes_on(deployment, model_opener):
    model, writer = model_opener.open()
    records = next_step(deployment, model)
    writer.write(records[1:])
    again, _ = model_opener.open()
    assert again.version == decode_model_state(records[1].value).model_version
