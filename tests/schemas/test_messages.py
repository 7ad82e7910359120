"""The values that travel."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

import schemas
from schemas import LedgerKind, ParticipationKind, Update, VectorType
from schemas.v1 import wire_pb2


def test_vector_types_have_the_numbers_of_the_schema():
    ours = {f"VECTOR_TYPE_{each.name}": each.value for each in VectorType}
    assert {"VECTOR_TYPE_UNSPECIFIED": 0, **ours} == dict(wire_pb2.VectorType.items())


def test_ledger_kinds_have_the_numbers_of_the_schema():
    ours = {f"LEDGER_KIND_{each.name}": each.value for each in LedgerKind}
    assert {"LEDGER_KIND_UNSPECIFIED": 0, **ours} == dict(wire_pb2.LedgerKind.items())


def test_participation_kinds_have_the_numbers_of_the_schema():
    ours = {f"PARTICIPATION_KIND_{each.name}": each.value for each in ParticipationKind}
    numbers = dict(wire_pb2.ParticipationKind.items())
    assert {"PARTICIPATION_KIND_UNSPECIFIED": 0, **ours} == numbers


def test_vectors_are_little_endian():
    dtypes = [each.numpy.newbyteorder("<").str for each in VectorType]
    assert dtypes == ["|i1", "<i2", "<i4", "<i8", "<f4", "<f8"]
    assert [each.numpy.str for each in VectorType] == dtypes


def test_a_message_cannot_be_changed():
    update = Update(bytes(16), "ada", 0, np.ones(1, np.int8))
    with pytest.raises(FrozenInstanceError):
        update.client_id = "bob"


def test_what_the_package_exports_exists_and_is_sorted():
    constants = [name for name in schemas.__all__ if name.isupper()]
    others = [name for name in schemas.__all__ if not name.isupper()]
    assert [*sorted(constants), *sorted(others)] == schemas.__all__
    assert all(hasattr(schemas, name) for name in schemas.__all__)
