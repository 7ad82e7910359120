import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from agents.settings import SETTINGS_FILE_VARIABLE, Settings, SettingsError, load_settings
from stream.privacy.plan import PrivacyPlan

REQUIRED = {"bootstrap_servers": "broker:9092", "plan": "plan.toml"}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.upper().startswith("SDP_"):
            monkeypatch.delenv(name)


@pytest.fixture
def settings_file(tmp_path, monkeypatch):
    """Write a settings file and name it in the environment."""

    def write(text: str) -> Path:
        path = tmp_path / "settings.toml"
        path.write_text(text)
        monkeypatch.setenv(SETTINGS_FILE_VARIABLE, str(path))
        return path

    return write


def refused(**arguments) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(**arguments)
    return str(caught.value)


def test_two_settings_are_enough():
    settings = load_settings(**REQUIRED)
    assert settings.bootstrap_servers == "broker:9092"
    assert settings.plan == Path("plan.toml")
    assert (settings.operator_port, settings.public_port) == (9464, 9465)
    assert settings.metrics_host == "127.0.0.1"


def test_a_missing_setting_is_named_with_its_variable():
    message = refused(bootstrap_servers=None)
    assert "plan is missing: set SDP_PLAN" in message
    assert "bootstrap_servers is missing: set SDP_BOOTSTRAP_SERVERS" in message


@pytest.mark.parametrize(
    "name", ["SDP_BOOTSTRAP_SERVER", "SDP_OPERATORPORT", "SDP_", "sdp_bootstrap_server", "Sdp_x"]
)
def test_a_misspelt_variable_stops_the_process(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    assert f"unknown environment variables: {name}" in refused(**REQUIRED)


def test_variables_of_other_programs_are_none_of_our_business(monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "x")
    monkeypatch.setenv("MY_SDP_PLAN", "x")
    load_settings(**REQUIRED)


def test_an_unknown_key_in_the_file_stops_the_process(settings_file):
    settings_file('operator_prot = 1\nplan = "p.toml"\nbootstrap_servers = "b:1"\n')
    assert "operator_prot" in refused()


def test_an_unknown_argument_stops_the_process():
    assert "prot" in refused(**REQUIRED, prot=1)


def test_arguments_win_over_the_environment_and_that_over_the_file(settings_file, monkeypatch):
    settings_file(
        'bootstrap_servers = "file:1"\nplan = "file.toml"\noperator_port = 1\npublic_port = 1\n'
    )
    monkeypatch.setenv("SDP_BOOTSTRAP_SERVERS", "environment:1")
    monkeypatch.setenv("SDP_OPERATOR_PORT", "2")
    settings = load_settings(bootstrap_servers="argument:1")
    assert settings.bootstrap_servers == "argument:1"
    assert settings.operator_port == 2
    assert settings.public_port == 1
    assert settings.plan == Path("file.toml")


def test_an_argument_that_was_not_given_leaves_the_other_sources_alone(monkeypatch):
    monkeypatch.setenv("SDP_OPERATOR_PORT", "2")
    assert load_settings(**REQUIRED, operator_port=None).operator_port == 2
    # Zero is a value: it takes any free port.
    assert load_settings(**REQUIRED, operator_port=0).operator_port == 0


def test_a_settings_file_that_is_not_there_stops_the_process(monkeypatch, tmp_path):
    monkeypatch.setenv(SETTINGS_FILE_VARIABLE, str(tmp_path / "none.toml"))
    assert "none.toml, which is not a file" in refused(**REQUIRED)
    monkeypatch.setenv(SETTINGS_FILE_VARIABLE, str(tmp_path))
    assert "which is not a file" in refused(**REQUIRED)


@pytest.mark.parametrize("text", ["plan = ", "= 1", "\0"])
def test_a_settings_file_that_is_no_toml_stops_the_process(settings_file, text):
    settings_file(text)
    assert "the settings cannot be read" in refused(**REQUIRED)


def test_a_settings_file_that_cannot_be_read_stops_the_process(settings_file, monkeypatch):
    settings_file("")

    def no_permission(*_, **__):
        raise PermissionError("no permission")

    monkeypatch.setattr(Path, "open", no_permission)
    assert "cannot be read: no permission" in refused(**REQUIRED)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bootstrap_servers", ""),
        ("operator_port", -1),
        ("operator_port", 65_536),
        ("public_port", "many"),
        ("session_timeout_ms", 999),
        ("transaction_timeout_ms", 0),
        ("request_timeout_s", 0),
        ("request_timeout_s", float("nan")),
        ("merge_deadline_ms", -1),
        ("window_memory_mib", 0),
        ("log_level", "debug"),
        ("log_level", "LOUD"),
    ],
)
def test_a_value_out_of_range_is_named(name, value):
    assert f"{name}: " in refused(**REQUIRED | {name: value})


def test_a_value_out_of_range_in_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("SDP_WINDOW_MEMORY_MIB", "lots")
    assert "window_memory_mib: " in refused(**REQUIRED)


@pytest.mark.parametrize(
    "option",
    [
        "security.protocol",
        "sasl.username",
        "ssl.ca.location",
        "socket.keepalive.enable",
        "broker.address.family",
        "client.dns.lookup",
    ],
)
def test_options_of_connection_and_security_are_handed_on(option):
    assert load_settings(**REQUIRED, kafka_options={option: "x"}).kafka_options == {option: "x"}


@pytest.mark.parametrize(
    "option",
    [
        "isolation.level",
        "enable.idempotence",
        "acks",
        "transactional.id",
        "group.id",
        "auto.offset.reset",
        "enable.auto.commit",
        "bootstrap.servers",
        "SSL.ca.location",
        "enable.ssl.certificate.verification",
        "",
    ],
)
def test_options_that_the_protocol_rests_on_are_refused(option):
    message = refused(**REQUIRED, kafka_options={option: "x"})
    assert "is not an option of connection or security" in message


def test_kafka_options_come_from_the_environment_as_json_and_from_the_file_as_a_table(
    settings_file, monkeypatch
):
    settings_file('[kafka_options]\n"sasl.username" = "file"\n')
    assert load_settings(**REQUIRED).kafka_options == {"sasl.username": "file"}
    monkeypatch.setenv("SDP_KAFKA_OPTIONS", '{"sasl.mechanism": "PLAIN"}')
    assert load_settings(**REQUIRED).kafka_options["sasl.mechanism"] == "PLAIN"
    monkeypatch.setenv("SDP_KAFKA_OPTIONS", "{sasl")
    assert "the settings cannot be read" in refused(**REQUIRED)


def test_settings_cannot_be_changed():
    settings = load_settings(**REQUIRED)
    with pytest.raises(ValidationError):
        settings.operator_port = 1


def test_no_setting_can_touch_the_guarantee():
    assert not set(Settings.model_fields) & set(PrivacyPlan.__dataclass_fields__)
