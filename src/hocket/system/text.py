"""Text of others (names, prompts, error messages) as it may be shown, and what an error says to
whoever wrote the code that raised it: one sentence, and then the frames of that code, whole, with
none of hocket's."""

from __future__ import annotations

import difflib
import importlib
import os
import re
from collections.abc import Iterable
from traceback import TracebackException

from hocket.errors import HocketError

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


_LONGEST = 2000
"""Characters of an error's own text that are repeated."""
_HEAD = "Traceback (most recent call last):\n"
_OURS = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep,
    importlib.__file__ or "<frozen",
    "<frozen",
)
"""How the names of files begin that no user wrote: hocket's, and those that import modules."""


def sentence(exc: BaseException) -> str:
    """The kind of an error and what it says, such as `ValueError: no such joint`."""
    try:
        said = str(exc)
    except BaseException as worse:  # noqa: BLE001 - what cannot say what it is shall be told too
        said = f"(its text cannot be made: {type(worse).__name__})"
    if len(said) > _LONGEST:
        said = f"{said[:_LONGEST]} ... ({len(said):,} characters)"
    return printable(f"{type(exc).__name__}: {said}" if said else type(exc).__name__)


def frames(exc: BaseException) -> str:
    """The frames of the user's code that an error came through, and those of its causes; empty
    where there are none."""
    told, is_syntax = TracebackException.from_exception(exc), isinstance(exc, SyntaxError)
    if not _keep_theirs(told) and not is_syntax:
        return ""
    lines = [line for line in told.format() if not line.endswith(_HEAD)]
    if is_syntax or (told.stack and lines[-1:] == list(told.format_exception_only())):
        lines.pop()  # The sentence says it already.
    return printable("".join(lines)).rstrip()


def account(exc: BaseException) -> str:
    """The sentence and the frames. An error of hocket's own says all in its sentence."""
    if isinstance(exc, HocketError):
        return sentence(exc)
    return f"{sentence(exc)}\n{frames(exc)}".rstrip()


def _keep_theirs(told: TracebackException) -> bool:
    """Leave the user's frames alone; false where there are none."""
    told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith(_OURS)]
    inner = [told.__cause__, *(getattr(told, "exceptions", None) or ())]
    if not told.__suppress_context__:
        inner.append(told.__context__)
    is_theirs = [_keep_theirs(each) for each in inner if each is not None]
    return bool(told.stack) or any(is_theirs)
