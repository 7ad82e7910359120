"""Every module has its test at the mirrored path, and one subject."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_LINES = 300

# Modules without a test at the mirrored path, and why that is right.
TESTED_ELSEWHERE = {
    "agents/__main__.py": "one call, made by every test that runs `sdp`",
    "agents/kafka_container.py": "tests/agents/test_local_kafka.py, with the other brokers",
    "agents/kafka_process.py": "tests/agents/test_native_kafka.py: every broker is one",
    "agents/ledger_audit.py": "tests/agents/test_ledger.py: planted violations go through all",
    "agents/ledger_checks.py": "tests/agents/test_ledger.py: planted violations go through all",
    "agents/ledger_report.py": "tests/agents/test_ledger.py: planted violations go through all",
    "agents/protocol_steps.py": "names only; tests/agents/test_partition.py watches them",
    "stream/errors.py": "names only",
}


def modules() -> list[Path]:
    """Return our modules, generated code and ``__init__`` excepted."""
    found = [
        path for name in ("agents", "schemas", "stream") for path in (ROOT / name).rglob("*.py")
    ]
    generated = ROOT / "schemas" / "v1"
    return [path for path in found if path.name != "__init__.py" and generated not in path.parents]


def test_every_module_has_its_test_at_the_mirrored_path() -> None:
    missing = [
        module
        for path in modules()
        if (module := path.relative_to(ROOT).as_posix()) not in TESTED_ELSEWHERE
        and not (ROOT / "tests" / module).with_name(f"test_{path.stem.strip('_')}.py").exists()
    ]
    assert missing == []


def test_the_list_of_exceptions_names_only_modules_that_exist_and_need_it() -> None:
    existing = {path.relative_to(ROOT).as_posix() for path in modules()}
    assert set(TESTED_ELSEWHERE) <= existing
    for module in TESTED_ELSEWHERE:
        path = Path(module)
        assert not (ROOT / "tests" / path).with_name(f"test_{path.stem.strip('_')}.py").exists()


def test_no_module_has_two_subjects() -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in modules()
    }
    assert {name: count for name, count in lengths.items() if count > MAX_LINES} == {}
