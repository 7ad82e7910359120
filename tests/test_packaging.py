"""Our three import names are generic: they must be ours, from one place, and free of Faust."""

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import agents
import schemas
import stream

NAMES = ["agents", "schemas", "stream"]
ROOT = Path(__file__).parents[1]

WITHOUT_FAUST = """\
import sys
for name in ("faust", "mode", "pydantic_settings", "click", "rich"):
    sys.modules[name] = None
import stream, stream.client
"""


@pytest.mark.parametrize("name", NAMES)
def test_no_other_distribution_installs_our_import_name(name: str) -> None:
    importlib.metadata.distribution("sdp-stream")  # raises where we are not installed at all
    # An editable install claims no names, a wheel claims all three; another claims none.
    claims = importlib.metadata.packages_distributions().get(name, [])
    assert set(claims) <= {"sdp-stream"}


def test_the_three_packages_come_from_one_folder() -> None:
    folders = {Path(str(package.__file__)).parents[1] for package in (agents, schemas, stream)}
    assert folders == {ROOT}


def test_the_client_library_imports_without_faust() -> None:
    result = subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT_FAUST], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_tests_and_deploy_are_not_importable() -> None:
    code = "import importlib.util as u, sys; sys.exit(any(map(u.find_spec, ('tests', 'deploy'))))"
    assert subprocess.run([sys.executable, "-I", "-c", code]).returncode == 0


def test_the_wheel_holds_our_packages_and_their_data_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    files = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in files if ".dist-info/" not in name} == set(NAMES)
    assert {
        "agents/kafka/pom.xml",
        "agents/kafka/log4j2.properties",
        "schemas/v1/wire.proto",
        "stream/py.typed",
    } <= set(files)


def test_the_lock_names_no_index_and_hashes_everything() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in text
    assert "index-url" not in text
    entries = text.replace("\\\n", " ").splitlines()
    pinned = [entry for entry in entries if "==" in entry and not entry.lstrip().startswith("#")]
    assert pinned
    assert all("--hash=sha256:" in entry for entry in pinned)
