"""The clip norms beside a model; the rest of these messages is in test_codec.py."""

from dataclasses import replace

import numpy as np
import pytest

import schemas
from schemas import ClipNorm, MalformedMessageError, ModelSnapshot, ModelState
from schemas.v1 import wire_pb2

PLAN_ID = bytes(range(16))
GOOD = (ClipNorm(0, 0, 1.0), ClipNorm(0, 9, 1.25), ClipNorm(3, 2, 5e-324))
SNAPSHOT = ModelSnapshot(PLAN_ID, 0, -1, 1000, np.array([1.0, -0.5], np.float32), GOOD)
STATE = ModelState(PLAN_ID, 2, 7, 300, (7, -1), "sgd", 2, np.ones((2, 2)), GOOD)
KINDS = [
    pytest.param(
        SNAPSHOT, schemas.encode_model_snapshot, schemas.decode_model_snapshot, id="snapshot"
    ),
    pytest.param(STATE, schemas.encode_model_state, schemas.decode_model_state, id="state"),
]
BAD = [
    *((ClipNorm(0, 0, norm),) for norm in (0.0, -0.0, -1.0, np.nan, np.inf, -np.inf)),
    (ClipNorm(2**31, 0, 1.0),),
    (ClipNorm(0, 2**63, 1.0),),
    (ClipNorm(1, 0, 1.0), ClipNorm(0, 0, 1.0)),
    (ClipNorm(0, 9, 1.0), ClipNorm(0, 8, 1.0)),
    (ClipNorm(0, 9, 1.0), ClipNorm(0, 9, 1.0)),
    (ClipNorm(0, 9, 1.0), ClipNorm(0, 9, 2.0)),
]


def with_norms(data, message, clip_norms):
    """What a hostile writer makes of ``data``: its own bytes, but for the clip norms."""
    parsed = getattr(wire_pb2, type(message).__name__).FromString(data)
    parsed.header.ClearField("clip_norms")
    for clip in clip_norms:
        parsed.header.clip_norms.add(
            cluster=clip.cluster, from_window=clip.from_window, norm=clip.norm
        )
    return parsed.SerializeToString(deterministic=True)


@pytest.mark.parametrize(("message", "encode", "decode"), KINDS)
@pytest.mark.parametrize("clip_norms", [(), GOOD[:1], GOOD], ids=len)
def test_clip_norms_come_back(message, encode, decode, clip_norms):
    data = encode(replace(message, clip_norms=clip_norms))
    assert decode(data).clip_norms == clip_norms
    assert with_norms(data, message, clip_norms) == data


@pytest.mark.parametrize(("message", "encode", "decode"), KINDS)
@pytest.mark.parametrize("clip_norms", BAD, ids=str)
def test_bad_clip_norms_are_neither_read_nor_written(message, encode, decode, clip_norms):
    data = with_norms(encode(message), message, clip_norms)
    with pytest.raises(MalformedMessageError, match="clip_norms"):
        decode(data)
    with pytest.raises(ValueError, match="clip_norms"):
        encode(replace(message, clip_norms=clip_norms))


@pytest.mark.parametrize(("message", "encode", "decode"), KINDS)
def test_a_validator_that_forgets_the_clip_norms_would_be_seen(
    monkeypatch, message, encode, decode
):
    monkeypatch.setattr(schemas.limits, "_validate_clip_history", lambda clip_norms: None)
    for clip_norms in BAD:
        decode(with_norms(encode(message), message, clip_norms))


@pytest.mark.parametrize(("message", "encode", "decode"), KINDS)
def test_a_clip_norm_has_one_encoding(message, encode, decode):
    data = encode(replace(message, clip_norms=(ClipNorm(1, 2, 1.0),)))
    norm = bytes.fromhex("0801100219000000000000f03f")
    assert norm in data
    for other in (
        "1002080119000000000000f03f",  # out of order
        "080019000000000000f03f1002",  # a default written out
        "08011002080119000000f03f00",  # cut, and a field twice
        "0801100225000000000000f03f",  # another type
    ):
        assert len(bytes.fromhex(other)) == len(norm)
        with pytest.raises(MalformedMessageError):
            decode(data.replace(norm, bytes.fromhex(other)))


@pytest.mark.parametrize(("message", "encode", "decode"), KINDS)
def test_a_header_full_of_norms_that_say_nothing_is_malformed(message, encode, decode):
    count = 30_000
    data = with_norms(encode(message), message, (ClipNorm(0, 0, 0.0),) * count)
    assert len(data) > 2 * count
    with pytest.raises(MalformedMessageError, match="clip_norms' norm"):
        decode(data)


@pytest.mark.parametrize(("message", "encode", "decode"), KINDS)
def test_two_norms_for_each_of_a_thousand_clusters_fit(message, encode, decode):
    norms = tuple(
        ClipNorm(cluster, window, 0.1) for cluster in range(1000) for window in (2**60, 2**62)
    )
    assert decode(encode(replace(message, clip_norms=norms))).clip_norms == norms
    with pytest.raises(ValueError, match="more than a header may have"):
        encode(replace(message, clip_norms=tuple(ClipNorm(c, 2**62, 0.1) for c in range(3000))))
