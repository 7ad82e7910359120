"""The committed code is what the schema generates."""

import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

SCHEMA = "schemas/v1/wire.proto"
GENERATED = ("schemas/v1/wire_pb2.py", "schemas/v1/wire_pb2.pyi")


def without_generator_version(text: str) -> str:
    """A newer grpcio-tools of the same output is not a change of the contract."""
    text = re.sub(r"(?m)^# Protobuf Python Version: .*$", "", text)
    return re.sub(r"(?s)(ValidateProtobufRuntimeVersion\().*?(?='')", r"\1", text)


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(str(files("schemas"))).parent
    out = tmp_path_factory.mktemp("generated")
    command = ["--proto_path=.", f"--python_out={out}", f"--pyi_out={out}", SCHEMA]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *command], cwd=root, check=True)
    return out


@pytest.mark.parametrize("path", GENERATED)
def test_the_committed_code_is_what_the_schema_generates(regenerated, path):
    committed = (Path(str(files("schemas"))).parent / path).read_text()
    fresh = (regenerated / path).read_text()
    assert without_generator_version(committed) == without_generator_version(fresh)


def test_a_change_of_the_schema_would_be_seen(regenerated):
    fresh = (regenerated / GENERATED[0]).read_text()
    changed = fresh.replace("client_id", "client_iD")
    assert without_generator_version(fresh) != without_generator_version(changed)
