"""The guarantee's text names the test that holds each claim: those tests are there."""

import re
from pathlib import Path

import pytest

import stream.privacy

ROOT = Path(__file__).parents[3]
NAMED = re.findall(r"\[(tests/[\w/]+\.py)::(\w+)\]", stream.privacy.__doc__ or "")


def test_each_step_of_the_proof_names_a_test():
    steps = re.split(r"\n\d\. ", (stream.privacy.__doc__ or "").split("**Why.**")[1])[1:]
    assert len(steps) == 7
    assert all("::test_" in step for step in steps)


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_test_that_the_guarantee_names_is_there(file, name):
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
