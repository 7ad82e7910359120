"""Updates of one length, one under the other: a matrix of bytes, for numpy to look at."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class UpdateBlock(NamedTuple):
    """Updates of one length.

    Attributes:
        places: Where they are among those that are looked at, in order.
        length: The length of each.
        rows: Shape ``(n, width)``; each row ends with an update, or with its beginning.
        skip: Where it begins in its row.
    """

    places: Sequence[int]
    length: int
    rows: NDArray[np.uint8]
    skip: int = 0


def blocks_of(values: Sequence[bytes], most_bytes: int | None) -> list[UpdateBlock]:
    """Put values of equal length together, each cut after ``most_bytes`` bytes."""
    lengths = list(map(len, values))
    blocks = []
    for length in dict.fromkeys(lengths):
        places: Sequence[int] = range(len(values))
        if lengths.count(length) < len(values):
            places = [place for place, each in enumerate(lengths) if each == length]
            values_of_length: Sequence[bytes] = [values[place] for place in places]
        else:
            values_of_length = values
        if most_bytes is not None and length > most_bytes:
            values_of_length = [value[:most_bytes] for value in values_of_length]
        rows = np.frombuffer(b"".join(values_of_length), np.uint8).reshape(len(places), -1)
        blocks.append(UpdateBlock(places, length, rows))
    return blocks
