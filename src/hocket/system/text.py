"""Text of others (names, prompts, error messages) as it may be shown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tabs and the ends of lines
    "\u202a-\u202e\u2066-\u2069"  # what turns the direction of the text around it
    "\ud800-\udfff]"  # halves of characters, which no encoding takes
)


def printable(text: str) -> str:
    """The text with what would command a terminal or garble a page written out, as `\\x1b`."""
    if text.isprintable():
        return text
    return _UNFIT.sub(lambda found: ascii(found[0])[1:-1], text)


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The sentence ` Did you mean 'x'?` with the nearest choice; empty where none is near."""
    near = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def counted(number: int, noun: str) -> str:
    """A count with its noun, such as `1 error` or `2 errors`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
