"""Rows of text in aligned columns, for reports that are read in a terminal or a log."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Return one line a row; each column is as wide as its widest text.

    Args:
        rows: All of the same length.
        indent: What each line begins with.
    """
    widths = [max(len(text) for text in column) for column in zip(*rows, strict=True)]
    return [
        (
            indent + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
