"""Each client's own budget: what the windows that used its updates have cost it."""

from bisect import bisect_left
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from stream.errors import LedgerError

_CAP_END = 2**63


def client_key(plan_id: bytes, client_id: str) -> int:
    """Return the 64-bit number under which a client's budget is kept.

    Two clients with the same number share one budget: a window charges it for either, and once
    if it used both, so neither is ever charged less than it owes, and both are refused too
    early. The history of one then enters the decision about the other, which costs each at most
    the cap a second time. Among 1,000,000 clients some pair collides with probability 2.8e-8,
    and a given client with 5.5e-14, a negligible part of any delta in use. That is for ids that
    are issued: whoever may choose an id freely can find one that collides with some client's, in
    about 2^44 trials.

    Args:
        plan_id: Key of the hash: collisions of one plan mean nothing under another.
        client_id: The authenticated id.
    """
    digest = blake2b(client_id.encode(), digest_size=8, key=plan_id, person=b"sdp-client")
    return int.from_bytes(digest.digest(), "big")


class ClientBudgets:
    """What each client of one cluster has spent of the cap, which is the same for all.

    The budget scope `client`: a client pays for a window only if the window used its update,
    and an update that its client can no longer pay for is refused, while releases go on.

    Guarantee: no client is ever charged more than the cap in total. As an individual filter
    (Feldman and Zrnic 2021; for Gaussian noise Koskela et al. 2023) this keeps what a client
    loses to everything ever released under the cap's guarantee, in a stream without an end. Why
    it is sound when neighbours differ by one client, present or absent: given what was released
    before, whether another client's update is used depends on that client's own history alone
    (`may_pay` looks at nothing else), so it is used in both worlds or in neither. The sums of a
    window that did not use the client's update are therefore equal, and its release has the same
    law in both worlds: it costs nothing. In each other window they differ by the one update,
    which the window's charge pays for, and those charges stop at the cap. That needs charges
    that follow from what was released, never from who took part.

    Secret: all of it. Who has spent what, how many clients there are, how many are refused, and
    that a given one is refused are facts about participation, without noise. They stay inside
    the boundary, and a refused client gets no answer that an accepted one would not get.

    The arrays are replaced at a charge and never changed, so a snapshot stays as it was taken.
    They take 16 bytes a client, and less than 40 together with what a charge needs for itself.

    Attributes:
        cap_units: What each client may spend, in units of 2^-60 zCDP.

    References:
        Feldman and Zrnic (2021), Individual privacy accounting via a Renyi filter.
        https://arxiv.org/abs/2008.11193
        Koskela, Tobaben, Honkela (2023), Individual privacy accounting with Gaussian
        differential privacy. https://arxiv.org/abs/2209.15596
    """

    __slots__ = ("_key_view", "_keys", "_spent", "_spent_view", "cap_units")

    def __init__(self, cap_units: int) -> None:
        """Begin with nobody having spent anything.

        Raises:
            LedgerError: the cap is not from 1 to 2^63 - 1 units.
        """
        # A total and a charge are each at most the cap, so their uint64 sum cannot wrap.
        if not 1 <= cap_units < _CAP_END:
            raise LedgerError(
                f"a client's cap of {cap_units} units is not from 1 to 2^63 - 1 (8 zCDP)"
            )
        self.cap_units = cap_units
        self._adopt(np.empty(0, np.uint64), np.empty(0, np.uint64))

    @classmethod
    def from_snapshot(
        cls, cap_units: int, keys: NDArray[np.uint64], spent: NDArray[np.uint64]
    ) -> "ClientBudgets":
        """Return the budgets that `snapshot` gave the arrays of; they are copied.

        Raises:
            LedgerError: no history of charges under this cap leads to them.
        """
        budgets = cls(cap_units)
        if keys.shape != spent.shape or not _are_keys(keys) or spent.dtype != np.uint64:
            raise LedgerError("clients' budgets need sorted unique keys and a total for each")
        if keys.size and not 1 <= int(spent.min()) <= int(spent.max()) <= cap_units:
            raise LedgerError(f"a client's total is not from 1 to the cap of {cap_units} units")
        budgets._adopt(keys.copy(), spent.copy())
        return budgets

    @property
    def client_count(self) -> int:
        """How many clients have spent anything; secret."""
        return self._keys.size

    @property
    def nbytes(self) -> int:
        """What the budgets take in memory between two charges, in bytes."""
        return self._keys.nbytes + self._spent.nbytes

    def may_pay(self, key: int, units: int) -> bool:
        """Say whether the client's own budget can pay for ``units`` more.

        Where windows that used its update are not charged yet, ``units`` must have their
        charges in it: what they will cost is as good as spent.
        """
        return self.spent(key) + units <= self.cap_units

    def spent(self, key: int) -> int:
        """Return what the client has spent; secret."""
        # On Python integers: a search of numpy's for one of them would compare in float64, in
        # which large keys are equal.
        index = bisect_left(self._key_view, key)
        if index == len(self._key_view) or self._key_view[index] != key:
            return 0
        return self._spent_view[index]

    def exhausted_count(self, units: int) -> int:
        """Return how many clients that have spent something cannot pay ``units``; secret."""
        if units > self.cap_units:
            return self.client_count
        return int(np.count_nonzero(self._spent > np.uint64(self.cap_units - units)))

    def charge(self, keys: NDArray[np.uint64], units: int) -> None:
        """Charge a window's clients, once that is durable: all of them, or none.

        Args:
            keys: Who took part, sorted and unique.
            units: What the window cost, in units of 2^-60 zCDP; 0 changes nothing.

        Raises:
            LedgerError: a client would pass the cap; nobody was charged.
            ValueError: the keys are not sorted and unique, or the charge is negative.
        """
        self._adopt(*self._after(keys, units))

    def after(self, keys: NDArray[np.uint64], units: int) -> "ClientBudgets":
        """Return the budgets as they stand after `charge`; these do not change."""
        budgets = ClientBudgets(self.cap_units)
        budgets._adopt(*self._after(keys, units))
        return budgets

    def snapshot(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return all clients' keys, sorted, and what each has spent: read-only, not copied."""
        return self._keys, self._spent

    def _after(
        self, keys: NDArray[np.uint64], units: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        if not _are_keys(keys) or units < 0:
            raise ValueError("a charge is at least 0 and needs sorted unique uint64 keys")
        if not keys.size or not units:
            return self._keys, self._spent
        if units > self.cap_units:
            raise LedgerError(f"{units} units are more than a client's cap of {self.cap_units}")
        all_keys, spent = self._with(keys)
        np.add.at(spent, all_keys.searchsorted(keys), np.uint64(units))
        if int(spent.max()) > self.cap_units:
            raise LedgerError(
                f"a charge of {units} units would take a client past its cap of "
                f"{self.cap_units}: it was to be refused; nobody is charged"
            )
        return all_keys, spent

    def _with(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the arrays with ``keys`` among them; the second one is the caller's to change."""
        slots = self._keys.searchsorted(keys)
        if self._keys.size:
            is_new = self._keys.take(slots, mode="clip") != keys
            slots, keys = slots[is_new], keys[is_new]
        if not keys.size:
            return self._keys, self._spent.copy()
        # Each new key shifts those after it by one.
        slots += np.arange(slots.size)
        is_old = np.ones(self._keys.size + keys.size, np.bool_)
        is_old[slots] = False
        all_keys = np.empty(is_old.size, np.uint64)
        all_keys[slots], all_keys[is_old] = keys, self._keys
        spent = np.zeros(is_old.size, np.uint64)
        spent[is_old] = self._spent
        return all_keys, spent

    def _adopt(self, keys: NDArray[np.uint64], spent: NDArray[np.uint64]) -> None:
        keys.flags.writeable = spent.flags.writeable = False
        self._keys, self._spent = keys, spent
        self._key_view, self._spent_view = keys.data, spent.data


def _are_keys(keys: NDArray[np.uint64]) -> bool:
    is_list = keys.ndim == 1 and keys.dtype == np.uint64
    return is_list and bool((keys[1:] > keys[:-1]).all())
