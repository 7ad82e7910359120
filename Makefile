# The commands: make setup, check, format, demo, bench, lock. `make` alone lists all.
# Works with GNU Make 4.3 or newer and a path without spaces.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_ARGS ?=
# Most tests wait for windows and brokers: three at a time keep two cores busy.
PYTEST_ARGS ?= -n 3 --dist loadfile

# Each is made last, so it stands for a step that was completed with exactly these inputs.
DEPENDENCIES := $(VENV)/.dependencies
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup check demo lint format test bench bench-quick proto lock clean

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

bench-quick: setup  ## the same with fewer repeats, under a minute
	$(BIN)/python tests/benchmarks/run.py --quick --output bench.json

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

clean:  ## remove the venv, caches and build results
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find agents schemas stream tests -name __pycache__ -type d -prune -exec rm -rf {} +
