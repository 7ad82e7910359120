"""The README's commands and its code, run as they stand."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agents.broker import free_port
from stream.privacy.plan import PrivacyPlan

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def test_it_is_short_and_every_file_that_it_names_exists():
    assert len(README.splitlines()) < 200
    linked = re.findall(r"\]\(([^)#]+)\)", README)
    named = re.findall(r"`((?:stream|agents|schemas|deploy)/[\w./]+)`", README)
    assert linked
    assert [name for name in linked + named if not (ROOT / name).exists()] == []


def test_its_two_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = [block.strip() for block in blocks("bash")]
    assert commands[:2] == ["make demo", "make check"]
    assert all(re.search(rf"^{command.split()[1]}:", makefile, re.M) for command in commands[:2])


def run(script, environment):
    """Run a block of the README as it stands, with our `sdp` first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env=environment | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_calculation_gives_what_its_comment_says_and_the_audit_passes():
    script = blocks("bash")[3]
    assert script.splitlines()[0].split("#")[1].strip() == "windows: 70"
    assert re.search(r"\b70\b", run(script, dict(os.environ)))


@pytest.mark.integration
@pytest.mark.slow
def test_the_parts_run_by_hand_as_it_says(native_kafka, tmp_path):
    script = blocks("bash")[2].replace("9092", str(free_port()))
    # Only the ports of the metrics are made free ones: 9464 to 9467 may be taken here.
    for port in ("9466", "9467"):
        script = script.replace(port, str(free_port()))
    script = script.replace("sdp head", f"sdp head --operator-port {free_port()} --public-port 0")
    environment = {name: v for name, v in os.environ.items() if not name.startswith("SDP_")}
    environment["XDG_RUNTIME_DIR"] = str(tmp_path)
    stop = "trap 'sdp kafka down; kill $(jobs -p); wait' EXIT\n"
    output = run(stop + script, environment)
    assert "differentially private" in output
    assert "sdp.updates" in output


@pytest.mark.integration
def test_the_training_loop_publishes_what_the_next_model_is_made_of(deploy, tmp_path):
    (code,) = blocks("python")
    plan = PrivacyPlan.from_toml((ROOT / "deploy" / "plan.toml").read_text(encoding="utf-8"))
    changes = {
        f.name: getattr(plan, f.name)
        for f in dataclasses.fields(plan)
        if f.name not in ("topic_prefix", "window_length_ms", "grace_ms", "release_delay_ms")
    }
    deployment = deploy(**changes)
    deployment.start_head(noise=True)
    deployment.start_global()
    deployment.wait_until_owned(deployment.workers[0])
    code = code.replace("deploy/plan.toml", str(deployment.plan_file))
    code = code.replace("127.0.0.1:9092", deployment.bootstrap_servers)
    seen = []

    def my_gradient(weights):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(weights)
        return np.ones(plan.dimension)

    with pytest.raises(KeyboardInterrupt):
        exec(code, {"my_gradient": my_gradient})  # noqa: S102 - the README's own code
    assert not np.array_equal(*seen)
    partition = plan.cluster_of("device-17")
    assert len(deployment.updates(partition)) == 2
