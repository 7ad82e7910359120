"""A number for each client, looked up many at a time, so that a window's clients are bits in a row.

A hash table with open addressing, in arrays: who is looked up costs what it takes to fetch the
bytes and compare them, and no object is made for anybody.
"""

from collections.abc import Collection, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1
"""Stands for the number of a client that has none."""

_WORD = 8
_MOST_WORDS = -(-255 // _WORD)
# Places in the table for each client: nine of ten stand where they are looked for first.
_PLACES = 8
_FEWEST_CLIENTS = 1 << 10
_MASK = (1 << 64) - 1
_HALF = np.uint64(32)

Item = TypeVar("Item", bound=np.generic)


class ClientNumbers:
    """Numbers clients from zero. One thread at a time.

    Where in the table a client stands follows from a secret of the process, as in Python's own
    tables, so senders do not know which names would crowd it.
    """

    def __init__(self) -> None:
        """Begin with no client."""
        self._count = 0
        # The ids one after the other, each with zeros up to a whole word; by number, where each
        # begins, and how many bytes it has. Both have an entry more than there are clients: the
        # last one is that of `UNKNOWN`, who has no bytes.
        self._words = with_room(np.empty(0, np.uint64), 1)
        self._starts = with_room(np.empty(0, np.int64), 1)
        self._lengths = with_room(np.empty(0, np.uint8), 1)
        self._table = np.empty(0, np.int32)
        self._shift = np.uint64(0)
        self._build_table()

    def __len__(self) -> int:
        """Return how many clients have a number."""
        return self._count

    def name(self, number: int) -> bytes:
        """Return the id of the client of a number."""
        begin, end = self._starts[number : number + 2]
        return self._words[begin:end].tobytes()[: int(self._lengths[number])]

    def find(self, client_ids: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Look up clients whose ids are of one length.

        Args:
            client_ids: Shape ``(n, length)``, an id in each row.

        Returns:
            The number of each, shape ``(n,)``, or `UNKNOWN`.
        """
        words, length = _words_of(client_ids), client_ids.shape[1]
        places = self._first_places(words, length)
        numbers = self._table[places]
        others = np.flatnonzero(~self._are(numbers, words, length))
        while others.size:
            # Nobody stands behind an empty place.
            others = others[numbers[others] != UNKNOWN]
            places[others] = self._next(places[others])
            numbers[others] = self._table[places[others]]
            others = others[~self._are(numbers[others], words[others], length)]
        return numbers

    def add(self, client_ids: Sequence[bytes]) -> NDArray[np.int32]:
        """Return the number of each client, shape ``(n,)``; who has none gets one.

        Args:
            client_ids: Ids of 1 to 255 bytes.
        """
        numbers = np.empty(len(client_ids), np.int32)
        lengths = np.fromiter(map(len, client_ids), np.int64, len(client_ids))
        for length in np.unique(lengths).tolist():
            rows = np.flatnonzero(lengths == length).tolist()
            ids = _rows_of([client_ids[row] for row in rows])
            found = self.find(ids)
            missing = np.flatnonzero(found == UNKNOWN).tolist()
            if missing:
                names = [client_ids[rows[each]] for each in missing]
                # Somebody may come more than once.
                different = dict.fromkeys(names)
                added = {name: number for number, name in enumerate(different, self._count)}
                self._append(_rows_of(different))
                found[missing] = [added[name] for name in names]
            numbers[rows] = found
        return numbers

    def keep(self, are_kept: NDArray[np.bool_]) -> None:
        """Forget clients; the others are numbered anew, in the same order.

        Args:
            are_kept: Shape ``(len(self),)``.
        """
        sizes = np.diff(self._starts[: self._count + 1])
        words = self._words[: sizes.sum()][np.repeat(are_kept, sizes)]
        self._words = with_room(words, 1)
        self._count = int(np.count_nonzero(are_kept))
        self._lengths = with_room(self._lengths[: are_kept.size][are_kept], self._count + 1)
        self._starts = np.concatenate(([0], np.cumsum(sizes[are_kept])))
        self._build_table()

    def _append(self, client_ids: NDArray[np.uint8]) -> None:
        """Number clients of one length that have no number, all different."""
        words, length = _words_of(client_ids), client_ids.shape[1]
        first, self._count = self._count, self._count + len(words)
        used = int(self._starts[first])
        starts = used + words.shape[1] * np.arange(len(words) + 1)
        self._words = with_room(self._words, used + words.size)
        self._words[used : used + words.size] = words.ravel()
        self._starts = with_room(self._starts, self._count + 1)
        self._starts[first : self._count + 1] = starts
        self._lengths = with_room(self._lengths, self._count + 1)
        self._lengths[first : self._count] = length
        numbers = np.arange(first, self._count, dtype=np.int32)
        if self._count * _PLACES > self._table.size:
            self._build_table()
        else:
            self._enter(numbers, words, length)

    def _build_table(self) -> None:
        most = max(_FEWEST_CLIENTS, 2 * self._count)
        bits = (most * _PLACES - 1).bit_length()
        self._table = np.full(1 << bits, UNKNOWN, np.int32)
        self._shift = np.uint64(64 - bits)
        lengths = self._lengths[: self._count]
        for length in np.unique(lengths).tolist():
            numbers = np.flatnonzero(lengths == length).astype(np.int32)
            words = self._words[
                self._starts[numbers][:, np.newaxis] + np.arange(-(-length // _WORD))
            ]
            self._enter(numbers, words, length)

    def _enter(self, numbers: NDArray[np.int32], words: NDArray[np.uint64], length: int) -> None:
        """Write numbers to the table, each to the first place after its own that is free."""
        places = self._first_places(words, length)
        while numbers.size:
            are_free = self._table[places] == UNKNOWN
            self._table[places[are_free]] = numbers[are_free]
            # Of those that want the same place one has it now.
            are_left = self._table[places] != numbers
            numbers, places = numbers[are_left], self._next(places[are_left])

    def _first_places(self, words: NDArray[np.uint64], length: int) -> NDArray[np.int64]:
        mixed = words[:, 0] * _MULTIPLIERS[0]
        for column in range(1, words.shape[1]):
            mixed += words[:, column] * _MULTIPLIERS[column]
        mixed += np.uint64(int(_MULTIPLIERS[-1]) * length & _MASK)
        # Names that are counted up would stand in steps, and for some multipliers in heaps.
        mixed ^= mixed >> _HALF
        mixed *= _MULTIPLIERS[-2]
        places: NDArray[np.int64] = (mixed >> self._shift).astype(np.int64)
        return places

    def _next(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return (places + 1) & (self._table.size - 1)

    def _are(
        self, numbers: NDArray[np.int32], words: NDArray[np.uint64], length: int
    ) -> NDArray[np.bool_]:
        """Say of each number whether its client is the one in the same row of ``words``."""
        are_same: NDArray[np.bool_] = self._lengths[numbers] == length
        starts = self._starts[numbers]
        for column in range(words.shape[1]):
            # Those of another length may lead past the end, and what is there does not matter.
            found = self._words.take(starts + column, mode="clip")
            are_same &= found == words[:, column]
        return are_same


def _secret_multipliers() -> NDArray[np.uint64]:
    """Return an odd number for each word of an id, one to mix them, and one for the length.

    They come from the secret that Python mixes into the hash of all bytes.
    """
    names = (b"client word %d" % column for column in range(_MOST_WORDS + 2))
    return np.array([hash(name) & _MASK | 1 for name in names], np.uint64)


_MULTIPLIERS = _secret_multipliers()


def _rows_of(client_ids: Collection[bytes]) -> NDArray[np.uint8]:
    """Return ids of one length, an id in each row."""
    return np.frombuffer(b"".join(client_ids), np.uint8).reshape(len(client_ids), -1)


def _words_of(client_ids: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return ids as words, shape ``(n, words)``, with zeros after each id."""
    count, length = client_ids.shape
    padded = np.zeros((count, -(-length // _WORD) * _WORD), np.uint8)
    padded[:, :length] = client_ids
    return padded.view(np.uint64)


def with_room(array: NDArray[Item], size: int) -> NDArray[Item]:
    """Return an array that begins like ``array``, then zeros, of ``size`` elements or more."""
    if array.size >= size:
        return array
    more = np.zeros(max(size, 2 * array.size, _FEWEST_CLIENTS), array.dtype)
    more[: array.size] = array
    return more
