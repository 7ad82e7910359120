import pytest

from agents.text_table import aligned


def test_each_column_is_as_wide_as_its_widest_text_and_lines_end_without_blanks():
    assert aligned([["a", "bb", "c"], ["aaa", "b", ""]], indent="  ") == [
        "  a    bb  c",
        "  aaa  b",
    ]


def test_no_rows_are_no_lines():
    assert aligned([]) == []


def test_rows_of_different_lengths_are_an_error_of_ours():
    with pytest.raises(ValueError, match="zip"):
        aligned([["a"], ["a", "b"]])
