"""The kernels that can be tested here."""

from importlib.util import find_spec

import pytest

_NEEDS_NUMBA = pytest.mark.skipif(find_spec("numba") is None, reason="needs the extra `fast`")
KERNELS = ("numpy", pytest.param("numba", marks=_NEEDS_NUMBA))
