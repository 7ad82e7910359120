"""``sdp demo``: the main job on this machine, from nothing to a verdict."""

from pathlib import Path

import click
from confluent_kafka import KafkaException

from .plan import SHORTEST_WINDOW_MS, WINDOW_MS, WINDOWS

_CLIENTS = 2000
_MINIMUM_ACCURACY = 0.80


@click.command(name="demo")
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a report of everything that was measured to this file.",
)
@click.option(
    "--png",
    "png_path",
    default="sdp-demo.png",
    show_default=True,
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the picture of accuracy and epsilon over time to this file.",
)
@click.option(
    "--windows",
    default=WINDOWS,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Number of windows, over which the budget is spread.",
)
@click.option(
    "--window-ms",
    default=WINDOW_MS,
    show_default=True,
    type=click.IntRange(SHORTEST_WINDOW_MS, 600_000),
    help="Length of a window in milliseconds.",
)
@click.option(
    "--clients",
    default=_CLIENTS,
    show_default=True,
    type=click.IntRange(1, _CLIENTS),
    help="Number of clients, each with two images of its own.",
)
@click.option(
    "--minimum-accuracy",
    type=click.FloatRange(0, 1),
    help="Test accuracy below which the run has failed. Default: "
    f"{_MINIMUM_ACCURACY} at the default number of clients and windows, 0 at any other.",
)
@click.option("--keep", is_flag=True, help="Keep the logs of all processes, and say where.")
def demo(
    *,
    json_path: Path | None,
    png_path: Path,
    windows: int,
    window_ms: int,
    clients: int,
    minimum_accuracy: float | None,
    keep: bool,
) -> None:
    """Train a private model from a stream of real gradients, on Kafka.

    Starts a broker (or uses the one that KAFKA_BOOTSTRAP_SERVERS names), two cluster heads, the
    global agent, and a fleet of clients that hold the images of an MNIST sample. Shows accuracy,
    privacy spent and latencies while it runs, and takes everything down at the end, also on
    Ctrl-C. The default takes two minutes and a half. Where neither Docker nor Java is, it runs
    on librdkafka's mock cluster, and says what that cannot show.

    Exit code 0: every cell was released exactly once, the ledger of every cluster verifies, and
    the accuracy is reached. 1: not so, or a process failed; the reason is printed.
    """
    for path in (json_path, png_path):
        if path is not None and not path.absolute().parent.is_dir():
            raise click.UsageError(f"there is no folder {path.absolute().parent}")
    if minimum_accuracy is None:
        is_full_size = (windows, clients) == (WINDOWS, _CLIENTS)
        minimum_accuracy = _MINIMUM_ACCURACY if is_full_size else 0.0
    # Only this command needs what the demonstration needs: other commands work without.
    try:
        from rich.console import Console

        from .run import RUN_ERRORS, DemoOptions, run_demo
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"{error.name} is not installed: pip install 'sdp-stream[agents,demo]'"
        ) from error
    options = DemoOptions(
        clients=clients,
        windows=windows,
        window_ms=window_ms,
        minimum_accuracy=minimum_accuracy,
        json_path=json_path,
        png_path=png_path,
        keeps_logs=keep,
    )
    try:
        failed = run_demo(options, Console())
    except KafkaException as error:
        raise click.ClickException(f"Kafka: {error.args[0].str()}") from error
    except RUN_ERRORS as error:
        raise click.ClickException(str(error)) from error
    if failed:
        raise click.ClickException("the demonstration failed: " + "; ".join(failed))
