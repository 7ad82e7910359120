"""Finding Java, and fetching the jars once."""

from pathlib import Path

import pytest

from agents import kafka_jars
from agents.broker import KAFKA_VERSION, BrokerError
from agents.kafka_jars import fetch_jars, find_java


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH on which our own stand-ins come first, and an empty cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def install(folder: Path, name: str, script: str) -> None:
    tool = folder / name
    tool.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    tool.chmod(0o755)


def test_the_version_in_the_pom_is_the_one_that_we_name() -> None:
    assert f"<kafka.version>{KAFKA_VERSION}<".encode() in kafka_jars.kafka_resource("pom.xml")


def test_a_java_that_is_too_old_is_refused(tools: Path) -> None:
    install(tools, "java", """echo 'openjdk version "11.0.2" 2019-01-15' >&2""")
    with pytest.raises(BrokerError, match=r'too old for Kafka 4 \(openjdk version "11'):
        find_java()


def test_a_recent_java_is_taken(tools: Path) -> None:
    install(tools, "java", """echo 'openjdk version "21.0.2" 2024-01-16' >&2""")
    assert find_java() == str(tools / "java")


def test_java_home_goes_before_the_path(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tools / "nowhere"))
    with pytest.raises(BrokerError, match=r"no java in JAVA_HOME .*install Java 17"):
        find_java()


def test_the_jars_are_fetched_once(tools: Path) -> None:
    said: list[str] = []
    install(tools, "mvn", 'mkdir libs && echo jar > libs/kafka.jar && echo x >> "$0.calls"')
    first = fetch_jars(said.append)
    assert (first / "kafka.jar").exists()
    assert fetch_jars(said.append) == first
    assert (tools / "mvn.calls").read_text(encoding="utf-8") == "x\n"
    assert len(said) == 1
    assert [path.name for path in first.parent.parent.iterdir()] == [first.parent.name]


def test_a_fetch_that_fails_shows_the_output_and_leaves_nothing(tools: Path) -> None:
    install(tools, "mvn", "mkdir libs; echo 'Could not transfer artifact'; exit 1")
    with pytest.raises(BrokerError, match=r"(?s)\(exit 1\).*Could not transfer artifact"):
        fetch_jars(lambda _: None)
    assert list((tools.parent / "cache" / "sdp").iterdir()) == []


def test_another_process_that_was_faster_wins(tools: Path) -> None:
    install(tools, "mvn", 'mkdir libs; touch libs/mine; cp -r "$PWD" "$(cat "$0.home")"')
    (tools / "mvn.home").write_text(str(tools.parent / "home"), encoding="utf-8")
    home = fetch_jars(lambda _: None).parent
    home.rename(tools.parent / "moved")
    (tools / "mvn.home").write_text(str(home), encoding="utf-8")
    assert fetch_jars(lambda _: None) == home / "libs"
    assert [path.name for path in home.parent.iterdir()] == [home.name]


def test_without_maven_the_message_says_what_to_install(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(BrokerError, match="no mvn on the PATH: install Maven"):
        fetch_jars(lambda _: None)
