"""The commands ``sdp kafka up``, ``down`` and ``status``."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from . import kafka_daemon
from .broker import BrokerError

NOT_RUNNING = 3


@click.group()
def kafka() -> None:
    """Run a local Apache Kafka for trying things out: one node, on loopback.

    It needs Java 17 or newer and, the first time, Maven, which fetches the jars (45 MB).
    It is no production broker: there is one copy of the data and no authentication.
    """


@kafka.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the data in this folder. Without it, `down` removes the data.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    help="Port on 127.0.0.1. Without it, a free one is chosen.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def up(data_dir: Path | None, port: int | None, as_json: bool) -> None:
    """Start the local Kafka and leave it running.

    Prints its address, for KAFKA_BOOTSTRAP_SERVERS or --bootstrap-servers. Where it runs
    already, says so and exits 0.
    """
    with _errors_for_people():
        result = kafka_daemon.up(data_dir, port)
    found = result.kafka
    if as_json:
        click.echo(_as_json(found, started=result.started))
    elif result.started:
        click.echo(f"Kafka runs at {found.bootstrap_servers} (pid {found.pid})")
        click.echo(f"data and log: {found.data_dir}", err=True)
    else:
        click.echo(f"Kafka already runs at {found.bootstrap_servers} (pid {found.pid})")


@kafka.command()
def down() -> None:
    """Stop the local Kafka; remove its data unless --data-dir named a folder for it."""
    with _errors_for_people():
        stopped = kafka_daemon.down()
    if stopped is None:
        click.echo("no local Kafka was running")
    elif stopped.temporary:
        click.echo(f"stopped (pid {stopped.pid}), its data is removed")
    else:
        click.echo(f"stopped (pid {stopped.pid}), its data stays in {stopped.data_dir}")


@kafka.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def status(context: click.Context, as_json: bool) -> None:
    """Say whether the local Kafka runs. Exit code 0: it runs; 3: it does not."""
    with _errors_for_people():
        found = kafka_daemon.status()
    if as_json:
        click.echo(_as_json(found))
    elif found is None:
        click.echo("no local Kafka is running")
    else:
        click.echo(
            f"Kafka runs at {found.bootstrap_servers} (pid {found.pid}), data in {found.data_dir}"
        )
    if found is None:
        context.exit(NOT_RUNNING)


def _as_json(found: kafka_daemon.LocalKafka | None, **more: bool) -> str:
    if found is None:
        return json.dumps({"running": False})
    state = {"running": True, "bootstrap_servers": found.bootstrap_servers}
    return json.dumps({**state, **asdict(found), **more})


@contextlib.contextmanager
def _errors_for_people() -> Iterator[None]:
    try:
        yield
    except BrokerError as error:
        raise click.ClickException(str(error)) from error
