"""Fuzz one target: `python fuzz_decoders.py TARGET [libFuzzer's options] [FOLDER or FILE ...]`.

A folder is a corpus, which is read and added to; with files, each is run once: that is how a
finding is seen again. The targets are those of `fuzz_wire`, `fuzz_head`, `fuzz_model` and
`fuzz_ledger`. A finding is any exception that the target does not expect.
"""

import importlib
import sys
from collections.abc import Callable

import atheris

# What needs the fewest imports comes first. The planted one is wrong on purpose.
MODULES = ("fuzz_planted", "fuzz_wire", "fuzz_head", "fuzz_model", "fuzz_ledger")
_INSTRUMENTED = ["schemas", "stream", "tomllib", "fuzz_planted"]
_MESSAGE_OF = {"check": "update", "restore": "model_state"}


def find(name: str) -> Callable[[bytes], None]:
    """Import the target's module, with our packages instrumented, and return the target."""
    for module in MODULES:
        with atheris.instrument_imports(include=_INSTRUMENTED):
            targets = importlib.import_module(module).TARGETS
        if name in targets:
            return targets[name]
    sys.exit(f"there is no target {name}")


def mutator_of(name: str) -> Callable[[bytes, int, int], bytes] | None:
    """Return what knows the target's bytes; None where they are a script."""
    # Not before: it imports ours, which are to be instrumented first.
    mutation = importlib.import_module("fuzz_mutation")
    if name == "plan":
        return mutation.toml_mutator(_mutate)
    kind = _MESSAGE_OF.get(name, name.removeprefix("decode_"))
    headers = importlib.import_module("fuzz_wire").HEADERS
    if kind not in headers:
        return None
    return mutation.message_mutator(*headers[kind], _mutate)


def _mutate(data: bytes, max_size: int) -> bytes:
    # Looked up at each call: Fuzz() puts another function there.
    return atheris.Mutate(data, max_size)


def main() -> None:
    name = sys.argv.pop(1)
    target, mutator = find(name), mutator_of(name)
    options = {} if mutator is None else {"custom_mutator": mutator}
    atheris.Setup(sys.argv, target, **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
