# The commands: make setup, check, format, demo, bench, chaos, lock. `make` alone lists all.
# Works with GNU Make 4.3 or newer and a path without spaces.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_ARGS ?=
# Most tests wait for windows and brokers: three at a time keep two cores busy.
PYTEST_ARGS ?= -n 3 --dist loadfile

# How much the long suites do; `make check` runs a short part of each.
CHAOS_FAULTS ?= 200
CHAOS_SEED ?= 1
FUZZ_SECONDS ?= 60
SOAK_MINUTES ?= 60

# Each is made last, so it stands for a step that was completed with exactly these inputs.
DEPENDENCIES := $(VENV)/.dependencies
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup check demo lint format test bench bench-quick bench-scale chaos fuzz soak protocol \
	nightly proto lock clean

help:  ## list these targets
	@awk -F ':.*##' '/^[a-z-]+:.*##/ { printf "  make %-13s%s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED)  ## make .venv with every pinned dependency; nothing to do when nothing changed

$(DEPENDENCIES): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --no-compile --require-hashes -r requirements.lock
	@touch $@

$(INSTALLED): $(DEPENDENCIES) pyproject.toml
	@rm -f $@
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

check: setup lint test  ## everything that CI runs: style, types, layers, all tests

lint: setup  ## style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: setup  ## all tests; the last lines say which Kafka they used
	$(BIN)/pytest $(PYTEST_ARGS)

bench: setup  ## measure against the floors; a table and bench.json (a quiet machine, please)
	$(BIN)/python tests/benchmarks/run.py --output bench.json

bench-quick: setup  ## the same with fewer repeats, under five minutes
	$(BIN)/python tests/benchmarks/run.py --quick --output bench.json

bench-scale: setup  ## how heads scale, in ten minutes: a table, scale.json and four plots
	$(BIN)/python tests/benchmarks/scale.py --output scale.json

chaos: setup  ## inject CHAOS_FAULTS faults under load, verify after each; a table and chaos.json
	$(BIN)/python tests/chaos/run.py --faults $(CHAOS_FAULTS) --seed $(CHAOS_SEED) \
		--output chaos.json

fuzz: setup  ## fuzz every decoder for FUZZ_SECONDS
	$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS)

soak: setup  ## windows at a high rate for SOAK_MINUTES: memory, files, threads; soak.json
	$(BIN)/python tests/soak/run.py --minutes $(SOAK_MINUTES) --output soak.json

protocol: setup  ## search the model of the release protocol further than `make check` does
	$(BIN)/python tests/protocol/deep_check.py

nightly: setup  ## the long suites: protocol, chaos, soak, an hour of fuzzing
	$(MAKE) protocol chaos soak
	$(MAKE) fuzz FUZZ_SECONDS=3600

demo: setup  ## the main job on a local Kafka; options in DEMO_ARGS="--json report.json"
	$(BIN)/sdp demo $(DEMO_ARGS)

format: setup  ## repair what can be repaired by machine
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: setup  ## generate schemas/v1/*_pb2.py from the .proto files
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. schemas/v1/*.proto

lock: setup  ## resolve the newest allowed versions into requirements.lock
	$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --universal --python-version 3.11 \
		--custom-compile-command "make lock" --no-emit-package sdp-stream \
		--extra agents --extra demo --extra fast --group dev \
		--output-file requirements.lock pyproject.toml
	for peer in bytewax flower quix; do \
		$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --universal \
			--python-version 3.11 --custom-compile-command "make lock" --no-annotate \
			--group bench-$$peer \
			--output-file tests/benchmarks/peer_requirements/$$peer.txt || exit 1; \
	done

clean:  ## remove the venv, caches and build results
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find agents schemas stream tests -name __pycache__ -type d -prune -exec rm -rf {} +
