"""Values of one length stand one under the other, and each can be found again."""

from hypothesis import given
from hypothesis import strategies as st

from stream.aggregation.update_blocks import blocks_of


@given(values=st.lists(st.binary(max_size=6), max_size=30), most=st.sampled_from([None, 0, 3, 99]))
def test_every_value_is_in_the_block_of_its_length_in_order(values, most):
    blocks = blocks_of(values, most)
    assert [block.length for block in blocks] == list(dict.fromkeys(map(len, values)))
    found = {}
    for block in blocks:
        assert list(block.places) == sorted(block.places)
        assert block.skip == 0
        for place, row in zip(block.places, block.rows, strict=True):
            found[place] = block.length, row.tobytes()
    assert found == {place: (len(each), each[:most]) for place, each in enumerate(values)}


def test_values_of_one_length_are_their_own_places():
    (block,) = blocks_of([b"abc", b"xyz"], None)
    assert block.places == range(2)
    assert block.rows.tolist() == [[97, 98, 99], [120, 121, 122]]
