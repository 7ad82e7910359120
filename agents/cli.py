"""The command `sdp`.

Exit codes: 0 done, 1 failed while running, 2 wrong usage or settings, 3 the answer is no (a
ledger that does not verify, a broker that is not up, a budget that does not fit).
"""

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

import click
from confluent_kafka import KafkaError, KafkaException

from stream.errors import StreamError
from stream.privacy.plan import PrivacyPlan

from .cli_audit import audit_command
from .cli_kafka import kafka
from .cli_plan import plan
from .demo.command import demo
from .kafka_edge import connection
from .ledger import show as show_ledgers
from .ledger import verify as verify_ledgers
from .ledger import verify_deep
from .ledger_backup import export_ledgers, import_ledgers
from .plan_file import read_plan
from .settings import Settings, SettingsError, load_settings
from .topics import TopicError, create_topics

# `.workers` brings Faust, which takes a second to import: the commands import it when they run.

_P = ParamSpec("_P")
_T = TypeVar("_T")
_FILE = click.Path(dir_okay=False, path_type=Path)
_EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
USAGE_ERROR, ANSWER_IS_NO = 2, 3
_NO_ANSWER = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
    }
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="sdp-stream")
def main() -> None:
    """Streaming differential privacy for machine learning on Kafka.

    Every setting may also be given as an SDP_* environment variable, or in the TOML file that
    SDP_SETTINGS_FILE names.
    """


def _errors_explained(command: Callable[_P, _T]) -> Callable[_P, _T]:
    """Turn expected failures into one clear message and an exit code."""

    @wraps(command)
    def explained(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return command(*args, **kwargs)
        except (SettingsError, TopicError, StreamError, FileExistsError) as error:
            _fail(str(error), USAGE_ERROR)

    return explained


def _explain_kafka(error: KafkaError, settings: Settings) -> str:
    if error.code() not in _NO_ANSWER:
        return f"Kafka at {settings.bootstrap_servers}: {error.str()}"
    return (
        f"Kafka does not answer at {settings.bootstrap_servers} ({error.str()}): start it (`sdp "
        "kafka up` starts a local one), or say with --bootstrap-servers or SDP_BOOTSTRAP_SERVERS "
        "where it is. If it wants TLS or a password, set SDP_KAFKA_OPTIONS."
    )


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"sdp: {message}", err=True)
    sys.exit(code)


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command its settings and plan, from options, environment or file."""

    @click.option("--plan", type=_FILE, help="Privacy plan (TOML).  [SDP_PLAN]")
    @click.option("--bootstrap-servers", help="Kafka brokers.  [SDP_BOOTSTRAP_SERVERS]")
    @_errors_explained
    @wraps(command)
    def with_settings(
        *, plan: Path | None, bootstrap_servers: str | None, **options: object
    ) -> None:
        given = {name: options.pop(name) for name in Settings.model_fields if name in options}
        settings = load_settings(plan=plan, bootstrap_servers=bootstrap_servers, **given)
        try:
            command(settings, read_plan(settings.plan), **options)
        except KafkaException as error:
            _fail(_explain_kafka(error.args[0], settings), 1)

    return with_settings


def _worker_options(command: Callable[_P, _T]) -> Callable[_P, _T]:
    for option in (
        click.option("--log-level", help="DEBUG, INFO, WARNING or ERROR.  [SDP_LOG_LEVEL]"),
        click.option("--public-port", type=int, help="Public metrics.  [SDP_PUBLIC_PORT]"),
        click.option(
            "--operator-port", type=int, help="Metrics and /healthz.  [SDP_OPERATOR_PORT]"
        ),
    ):
        command = option(command)
    return command


@main.command()
@_with_settings
@_worker_options
def head(settings: Settings, plan: PrivacyPlan) -> None:
    """Run a cluster head until SIGTERM.

    Start as many as you like: the heads of a plan share its clusters. A head validates updates,
    sums them by window, charges the ledger, adds noise and releases each window once.
    """
    from .workers import run_head

    run_head(settings, plan)


@main.command("global")
@click.option("--initial-weights", type=_FILE, help="First model (.npy); zeros by default.")
@_with_settings
@_worker_options
def global_(settings: Settings, plan: PrivacyPlan, initial_weights: Path | None) -> None:
    """Run the global agent until SIGTERM.

    It merges the clusters' releases of each window and publishes the next model. A second one
    waits and takes over when the first is gone.
    """
    from .workers import read_initial_weights, run_global

    run_global(settings, plan, read_initial_weights(initial_weights, plan))


@main.group()
def topics() -> None:
    """The topics of a plan."""


@topics.command("create")
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of brokers that hold each topic.",
)
@click.option(
    "--min-insync-replicas",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of them that must have a record before it counts.",
)
@_with_settings
def topics_create(
    settings: Settings, plan: PrivacyPlan, replication_factor: int, min_insync_replicas: int
) -> None:
    """Create the topics that are missing; refuse those that do not fit the plan."""
    if min_insync_replicas > replication_factor:
        raise click.UsageError(
            "--min-insync-replicas above --replication-factor: no record would ever count"
        )
    config = connection(settings.bootstrap_servers, settings.kafka_options)
    created = create_topics(
        config,
        plan,
        replication_factor=replication_factor,
        min_insync_replicas=min_insync_replicas,
        request_timeout_s=settings.request_timeout_s,
    )
    click.echo(f"created {', '.join(created)}" if created else "all topics are there already")


@main.group()
def ledger() -> None:
    """What was spent, from the record of it in Kafka."""


@ledger.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_with_settings
def ledger_show(settings: Settings, plan: PrivacyPlan, as_json: bool) -> None:
    """Show what each cluster has spent of its budget and its limits.

    Where each client has a budget of its own: how many clients have spent how much, which must
    not leave the privacy boundary.
    """
    config = connection(settings.bootstrap_servers, settings.kafka_options)
    shown = show_ledgers(config, plan)
    click.echo(json.dumps(shown.as_json(), indent=2) if as_json else shown.as_text())


@ledger.command("verify")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--deep",
    "is_deep",
    is_flag=True,
    help="Recompute each sum from the raw updates, and check the model. Inside the boundary only.",
)
@_with_settings
def ledger_verify(settings: Settings, plan: PrivacyPlan, as_json: bool, is_deep: bool) -> None:
    """Check every record, every charge and every release; exit 3 if anything does not fit.

    From the beginning: the chain, the limits, what the schedule and adaptive clipping make of
    the released vectors, and what each client paid.

    With --deep also, as far back as the broker still has them: each release against the sum of
    its raw updates, the outbox and the heads' offsets against the ledger, and the sequence of
    models. This reads raw updates and tells how many there were: run it inside the privacy
    boundary, and keep there what it prints.
    """
    config = connection(settings.bootstrap_servers, settings.kafka_options)
    verified = verify_deep(config, plan) if is_deep else verify_ledgers(config, plan)
    click.echo(json.dumps(verified.as_json(), indent=2) if as_json else verified.as_text())
    if not verified.verified:
        sys.exit(ANSWER_IS_NO)


@ledger.command("export")
@click.argument("file", type=_FILE)
@_with_settings
def ledger_export(settings: Settings, plan: PrivacyPlan, file: Path) -> None:
    """Back up every ledger that is whole to a new file, also while heads are running.

    What clients have paid goes with it, where each has a budget of its own. Foreign bytes are
    left out. Exit code 3 if a ledger is not whole. The file must not leave the privacy boundary.
    """
    config = connection(settings.bootstrap_servers, settings.kafka_options)
    exported = export_ledgers(settings, config, plan, file)
    for found in exported:
        what = f"{found.records} records, {found.left_out} foreign ones left out"
        click.echo(f"cluster {found.cluster}: {found.problem or what}")
    if any(found.problem for found in exported):
        sys.exit(ANSWER_IS_NO)


@ledger.command("import")
@click.argument("files", type=_EXISTING_FILE, nargs=-1, required=True)
@_with_settings
def ledger_import(settings: Settings, plan: PrivacyPlan, files: tuple[Path, ...]) -> None:
    """Restore all ledgers from backups, into topics that were made again and are empty.

    Of several files the one that has more of a cluster's ledger counts. Stop the heads first:
    those that run are fenced off. A backup older than what is public is refused.
    """
    config = connection(settings.bootstrap_servers, settings.kafka_options)
    for found in import_ledgers(settings, config, plan, files):
        how = "restored from" if found.is_changed else "were there already, as in"
        click.echo(f"cluster {found.cluster}: {found.records} records {how} {found.file}")


main.add_command(audit_command)
main.add_command(kafka)
main.add_command(plan)
main.add_command(demo)
