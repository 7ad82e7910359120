"""Fuzz every decoder and what stands behind it: `python run.py [--seconds S] [TARGET ...]`.

Two targets run at a time, and all of them share the seconds; to start them takes half a minute
more. A table goes to standard output. The exit code is 1 where anything was found: then the
input is in a named file, and `fuzz_decoders.py TARGET FILE` runs it again.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fuzz_seeds import seeds_by_target

_SCRIPT = Path(__file__).with_name("fuzz_decoders.py")
_AT_A_TIME = 2
# How much of the time a target gets, where that is not one share: slow, or much behind it.
_SHARES = {"head": 4, "ledger": 3, "model": 3, "plan": 2, "participation_log": 2, "check": 2}
_OPTIONS = (
    "-print_final_stats=1",
    "-timeout=60",
    "-rss_limit_mb=2048",
    "-len_control=0",
    "-max_len=4096",
)
_MOST_HEX = 4096


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one target."""

    target: str
    executions: int
    a_second: int
    branches: int
    new_inputs: int
    finding: Path | None
    output: str
    exit_code: int

    @property
    def has_failed(self) -> bool:
        return self.exit_code != 0


def fuzz(target: str, seeds: Sequence[bytes], seconds: int, folder: Path) -> Result:
    """Run one target in a process of its own."""
    prefix = folder / f"{target}-"
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds):
            (Path(corpus) / f"seed-{number}").write_bytes(seed)
        process = subprocess.run(
            [
                *(sys.executable, str(_SCRIPT), target, corpus),
                *(*_OPTIONS, f"-max_total_time={seconds}", f"-artifact_prefix={prefix}"),
            ],
            capture_output=True,
            check=False,
        )
    output = (process.stdout + process.stderr).decode(errors="replace")
    named = re.findall(r"Test unit written to (\S+)", output)
    return Result(
        target=target,
        executions=_newest(r"stat::number_of_executed_units: +(\d+)", output),
        a_second=_newest(r"stat::average_exec_per_sec: +(\d+)", output),
        branches=_newest(r"\bcov: (\d+)", output),
        new_inputs=_newest(r"stat::new_units_added: +(\d+)", output),
        finding=Path(named[-1]) if named else None,
        output=output,
        exit_code=process.returncode,
    )


def _newest(pattern: str, output: str) -> int:
    found = re.findall(pattern, output)
    return int(found[-1]) if found else 0


def table(results: Sequence[Result]) -> str:
    lines = [
        f"{'target':<22}{'executions':>12}{'a second':>10}{'branches':>10}{'new':>7}{'crashes':>9}"
    ]
    lines += [
        f"{r.target:<22}{r.executions:>12,}{r.a_second:>10,}{r.branches:>10,}{r.new_inputs:>7,}"
        f"{int(r.has_failed):>9}"
        for r in results
    ]
    return "\n".join(lines)


def explain(result: Result) -> str:
    """Where the input is, what it is, and what it did."""
    told = [f"\n{result.target}: exit code {result.exit_code}"]
    if result.finding is not None:
        told.append(f"input: {result.finding}")
        told.append(f"hex: {result.finding.read_bytes()[:_MOST_HEX].hex()}")
        told.append(f"again: python {_SCRIPT.name} {result.target} {result.finding}")
    begin = result.output.find("=== Uncaught Python exception")
    told.append(result.output[begin:][:4000] if begin >= 0 else result.output[-4000:])
    return "\n".join(told)


def main() -> int:
    seeds = seeds_by_target()
    parser = argparse.ArgumentParser(description="Fuzz every decoder.")
    parser.add_argument(
        "--seconds", type=float, default=os.environ.get("FUZZ_SECONDS") or 60, metavar="S"
    )
    parser.add_argument("--output", type=Path, default=Path("build/fuzz"), metavar="FOLDER")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(sorted(seeds)))
    arguments = parser.parse_args()
    folder = arguments.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    targets = arguments.targets or sorted(seeds)
    at_a_time = min(_AT_A_TIME, len(targets))
    share = at_a_time * arguments.seconds / sum(_SHARES.get(target, 1) for target in targets)

    def run(target: str) -> Result:
        seconds = max(1, round(share * _SHARES.get(target, 1)))
        return fuzz(target, seeds.get(target, ()), seconds, folder)

    with ThreadPoolExecutor(at_a_time) as pool:
        results = list(pool.map(run, targets))
    say = [table(results), *(explain(result) for result in results if result.has_failed)]
    sys.stdout.write("\n".join(say) + "\n")
    return int(any(result.has_failed for result in results))


if __name__ == "__main__":
    sys.exit(main())
