"""The settings of one process: addresses, ports, time-outs. Never a number of the guarantee.

Sources, strongest first: arguments of the command line, ``SDP_*`` environment variables, a TOML
file. A name that is not listed here stops the process, wherever it was found.
"""

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

PREFIX = "SDP_"
SETTINGS_FILE_VARIABLE = "SDP_SETTINGS_FILE"
# Options that say how to reach and trust a broker; all others belong to the protocol.
_CONNECTION_OPTIONS = ("security.", "sasl.", "ssl.", "socket.", "broker.address.", "client.dns.")


class SettingsError(Exception):
    """Settings that cannot be used; the message lists each one and what is wrong with it."""


class Settings(BaseSettings):
    """Settings of a head, a global agent or a command.

    Attributes:
        bootstrap_servers: Brokers to ask first, ``host:port`` separated by commas.
        plan: File of the privacy plan.
        operator_port: Port of the operator's metrics and ``/healthz``; 0 takes a free one.
        public_port: Port of the public metrics; 0 takes a free one.
        metrics_host: Address that both ports listen on.
        session_timeout_ms: Silence after which the broker gives a worker's clusters to others.
        transaction_timeout_ms: Time that a transaction may stay open before the broker aborts it.
        request_timeout_s: Time that a single call to Kafka may take before it is tried again.
        merge_deadline_ms: Time after its release is due that a model waits for a missing cluster.
        window_memory_mib: Memory for the sums of one cluster's open windows.
        kernel: ``numpy``, or ``numba`` (extra ``fast``): the same sums and noise, made faster.
        log_level: ``DEBUG``, ``INFO``, ``WARNING`` or ``ERROR``.
        kafka_options: More options of librdkafka, of connection and security only.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    bootstrap_servers: str = Field(min_length=3)
    plan: Path
    operator_port: int = Field(default=9464, ge=0, le=65535)
    public_port: int = Field(default=9465, ge=0, le=65535)
    metrics_host: str = "127.0.0.1"
    session_timeout_ms: int = Field(default=10_000, ge=1_000, le=300_000)
    transaction_timeout_ms: int = Field(default=60_000, ge=1_000, le=900_000)
    request_timeout_s: float = Field(default=10.0, gt=0, le=300)
    merge_deadline_ms: int = Field(default=5_000, ge=0, le=86_400_000)
    window_memory_mib: int = Field(default=256, ge=1, le=1 << 20)
    kernel: Literal["numpy", "numba"] = "numpy"
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    kafka_options: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the file named by ``SDP_SETTINGS_FILE`` below arguments and environment."""
        file = os.environ.get(SETTINGS_FILE_VARIABLE)
        sources = (init_settings, env_settings)
        return (*sources, TomlConfigSettingsSource(settings_cls, Path(file))) if file else sources

    @field_validator("kafka_options")
    @classmethod
    def _only_connection_options(cls, options: dict[str, str]) -> dict[str, str]:
        for name in options:
            if not name.startswith(_CONNECTION_OPTIONS):
                raise ValueError(
                    f"{name} is not an option of connection or security; those that are begin "
                    f"with {', '.join(_CONNECTION_OPTIONS)}"
                )
        return options

    @model_validator(mode="after")
    def _no_unknown_variables(self) -> Self:
        # pydantic-settings does not see a misspelt variable: it asks only for names it knows.
        known = {PREFIX + name.upper() for name in type(self).model_fields}
        known.add(SETTINGS_FILE_VARIABLE)
        unknown = {name for name in os.environ if name.upper().startswith(PREFIX)} - known
        if unknown:
            raise ValueError(f"unknown environment variables: {', '.join(sorted(unknown))}")
        return self


def load_settings(**arguments: object) -> Settings:
    """Return the settings, with ``arguments`` (those that are not None) above all other sources.

    Raises:
        SettingsError: something is missing, misspelt or out of range.
    """
    file = os.environ.get(SETTINGS_FILE_VARIABLE)
    if file and not Path(file).is_file():
        raise SettingsError(f"{SETTINGS_FILE_VARIABLE} names {file}, which is not a file")
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        # The types of the arguments are what the model itself is there to check.
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        raise SettingsError(_explain(error)) from error
    except (ValueError, OSError) as error:
        raise SettingsError(f"the settings cannot be read: {error}") from error


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "missing":
            lines.append(f"{name} is missing: set {PREFIX}{name.upper()} or give it as an option")
        else:
            lines.append(f"{name}: {problem['msg']}" if name else problem["msg"])
    return "\n".join(lines)
