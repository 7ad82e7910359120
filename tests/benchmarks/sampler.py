"""The noise samplers against OpenDP's integer Gaussian and numpy's float normal; their memory.

Names: `sampler_ns_1e3` is the default (rounded Gaussian, numpy kernel) at sigma = 1e3; the
suffixes `_discrete` and `_numba` stand for the other law and kernel.
"""

import os
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial

import numpy as np
from measurement import Effort, Floor, Result, Variant, interleaved, ratios

from stream.privacy.discrete_gaussian import DiscreteGaussian
from stream.privacy.noise import NoiseSource, RoundedGaussian
from stream.privacy.noise_tables import Law, build_tables, noise_tables

SIGMAS = {"1": 1, "10": 10, "1e3": 10**3, "1e5": 10**5, "1e7": 10**7}
AGAINST_OPENDP = Floor(">=", 1000)
AGAINST_NUMPY = Floor("<=", 1.2)
PEAK_MEMORY = Floor("<=", 8)
_FEW = 5  # repeats of what is slow and hardly varies


def sources() -> dict[str, NoiseSource]:
    """Return our samplers by the suffix of their figures; numba's only where it is installed."""
    found: dict[str, NoiseSource] = {
        "": RoundedGaussian(os.urandom),
        "_discrete": DiscreteGaussian(os.urandom),
    }
    try:
        found["_numba"] = RoundedGaussian(os.urandom, "numba")
        found["_discrete_numba"] = DiscreteGaussian(os.urandom, "numba")
    except ImportError:
        pass  # the figures are missing from the table, which says enough
    return found


def opendp_variant(sigma: int, samples: int) -> Variant:
    """Return OpenDP's integer Gaussian of a whole vector: per sample its cheapest call by far."""
    # It takes seconds to import: not by the tests.
    import opendp.prelude as opendp

    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T=int)), opendp.l2_distance(T=float)
    measurement = opendp.m.make_gaussian(*space, scale=float(sigma))
    return Variant(partial(measurement, [0] * samples), samples)


def numpy_variant(samples: int) -> Variant:
    """Return numpy's float normal, into memory that is already there; ours allocates its own."""
    out = np.empty(samples)
    return Variant(partial(np.random.default_rng().standard_normal, out=out), samples)


def speed(
    label: str, ours: Mapping[str, NoiseSource], opendp: Variant, effort: Effort
) -> Iterator[Result]:
    """Yield nanoseconds a sample at one sigma, and the ratios to both yardsticks."""
    variance = Fraction(SIGMAS[label]) ** 2
    variants = {
        suffix: Variant(partial(source.sample, variance, effort.samples), effort.samples)
        for suffix, source in ours.items()
    }
    yardsticks = {"opendp": opendp, "numpy_normal": numpy_variant(effort.samples)}
    times = interleaved(variants | yardsticks, effort.repeats)
    for yardstick in yardsticks:
        yield Result(f"{yardstick}_ns_{label}", "ns/sample", times[yardstick])
    for suffix in ours:
        name = f"{label}{suffix}"
        faster = ratios(times["opendp"], times[suffix])
        slower = ratios(times[suffix], times["numpy_normal"])
        yield Result(f"sampler_ns_{name}", "ns/sample", times[suffix])
        yield Result(f"sampler_vs_opendp_{name}", "times faster", faster, AGAINST_OPENDP)
        yield Result(f"sampler_vs_numpy_normal_{name}", "of its time", slower, AGAINST_NUMPY)


def tables(label: str, effort: Effort) -> Iterator[Result]:
    """Yield how long the tables take, which are built once for each noise variance."""
    variance = Fraction(SIGMAS[label]) ** 2
    laws = {"": Law.ROUNDED_GAUSSIAN, "_discrete": Law.DISCRETE_GAUSSIAN}
    variants = {
        suffix: Variant(partial(build_tables, law, variance), 1) for suffix, law in laws.items()
    }
    for suffix, times in interleaved(variants, min(effort.repeats, _FEW)).items():
        values = [time / 1e6 for time in times]
        yield Result(f"sampler_tables_ms_{label}{suffix}", "ms/variance", values)


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the most memory in use at a time during ``call``, less what was in use before.

    tracemalloc counts what Python allocates and, since numpy reports to it, the data of every
    array, whether or not its pages were ever touched. It misses what C libraries allocate for
    themselves: here, some hundred bytes of an AES key.
    """
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def memory(ours: Mapping[str, NoiseSource], effort: Effort) -> Iterator[Result]:
    """Yield the peak memory of a large first draw beyond its output, the tables included."""
    size = effort.memory_samples
    output = size * np.dtype(np.int64).itemsize
    for suffix, source in ours.items():
        values = []
        for _ in range(min(effort.repeats, _FEW)):
            noise_tables.cache_clear()
            peak = peak_bytes(partial(source.sample, Fraction(10**6), size))
            values.append((peak - output) / 1e6)
        yield Result(f"sampler_peak_beyond_output{suffix}", "MB", values, PEAK_MEMORY)


def sampler_results(effort: Effort) -> Iterator[Result]:
    """Yield all figures of the samplers."""
    ours = sources()
    for label, sigma in SIGMAS.items():
        yield from speed(label, ours, opendp_variant(sigma, effort.opendp_samples), effort)
        yield from tables(label, effort)
    yield from memory(ours, effort)
