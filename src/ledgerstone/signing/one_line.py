"""Text of others, shown so that it cannot pass for something else.

Ids, reasons and metadata come from outside. A line break in one could begin a line that looks like
another fact, and a character that turns the direction of writing could change how an address reads.
"""

from __future__ import annotations


def one_line(text: str) -> str:
    """The text with characters that a terminal acts on, or does not show, as escapes."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
