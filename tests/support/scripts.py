"""Imports the modules of a folder of scripts for its tests, and forgets them afterwards."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest


@contextmanager
def importing_from(folder: Path) -> Iterator[Callable[[str], ModuleType]]:
    """Give a function that imports a module of ``folder``, which finds its siblings as a script.

    Folders have modules of one name, so none of them stays in ``sys.modules``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        try:
            yield importlib.import_module
        finally:
            for name, module in list(sys.modules.items()):
                if Path(getattr(module, "__file__", None) or "/").parent == folder:
                    del sys.modules[name]
