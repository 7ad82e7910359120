"""The broker that integration tests share, deployments on it, and the hypothesis profiles."""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from deployment import Deployment, small_plan
from hypothesis import settings

from agents.kafka_jars import fetch_jars, find_java
from agents.local_kafka import Broker, BrokerError, NativeBroker, start_broker

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=2_000)
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if IN_CI else "default"))

BROKERS_USED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[BROKERS_USED] = []


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the controller of pytest-xdist what this worker used."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["brokers"] = session.config.stash[BROKERS_USED]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    used = node.config.stash[BROKERS_USED]
    output = getattr(node, "workeroutput", {})
    used += [name for name in output.get("brokers", []) if name not in used]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    used = config.stash[BROKERS_USED]
    terminalreporter.write_line(f"broker: {', '.join(used) or 'none (no test asked for one)'}")


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """A real Kafka for the whole session; without one, skip (in CI: fail)."""
    with start_broker("auto", say=_note) as found:
        if found.kind == "mock":
            _skip_or_fail("no real Kafka can be had here: see DESIGN.md, Local Kafka")
        pytestconfig.stash[BROKERS_USED].append(found.description)
        yield found


@pytest.fixture(scope="session")
def bootstrap_servers(broker: Broker) -> str:
    """Address of the session's broker."""
    return broker.bootstrap_servers


@pytest.fixture(scope="session")
def native_kafka() -> None:
    """Skip (in CI: fail) where Kafka cannot run as a process of ours."""
    try:
        find_java()
        fetch_jars(_note)
    except BrokerError as error:
        _skip_or_fail(f"no native Kafka can be had here: {error}")


@pytest.fixture(scope="module")
def native_broker(native_kafka: None, pytestconfig: pytest.Config) -> Iterator[NativeBroker]:
    """A broker of the module's own, to kill and to restart."""
    with NativeBroker(say=_note) as found:
        if found.description not in pytestconfig.stash[BROKERS_USED]:
            pytestconfig.stash[BROKERS_USED].append(found.description)
        yield found


@pytest.fixture
def topic_prefix() -> str:
    """A prefix that no other test and no earlier run used."""
    return f"test-{uuid.uuid4().hex[:12]}"


def _note(message: str) -> None:
    """Progress is of no interest here; what cannot be had is said by the skip."""


def _skip_or_fail(reason: str) -> NoReturn:
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def deploy(
    bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> Iterator[Callable[..., Deployment]]:
    """Make deployments of small plans; keyword arguments replace the plan's fields."""
    made: list[Deployment] = []

    def make(*, servers: str = bootstrap_servers, **changes: object) -> Deployment:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        plan = small_plan(**{"topic_prefix": f"{topic_prefix}-{len(made)}"} | changes)
        deployment = Deployment(servers, plan, folder)
        made.append(deployment)
        return deployment

    yield make
    for deployment in made:
        deployment.close()
