"""Waiting for a broker."""

import time

import pytest

from agents.broker import BrokerError, free_port, wait_until_ready


def test_nobody_at_the_address_is_told_with_the_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerError, match=f"no Kafka broker answers at {address}"):
        wait_until_ready(address, 0.1)


def test_there_is_no_waiting_for_a_process_that_died() -> None:
    def died() -> None:
        raise BrokerError("it stopped")

    start = time.monotonic()
    with pytest.raises(BrokerError, match="it stopped"):
        wait_until_ready(f"127.0.0.1:{free_port()}", 60.0, died)
    assert time.monotonic() - start < 5
