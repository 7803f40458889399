"""What the scripts of the page draw, as plain data: `charts.js` has a function for each `draw`.

A text is a string, or a list of strings and of `bold`, `code` and `link`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Widget = dict[str, Any]
Words = Any
"""A text of the page."""


def bold(text: str) -> Widget:
    return {"b": text}


def code(text: str) -> Widget:
    return {"code": text}


def link(text: str, href: str) -> Widget:
    return {"a": text, "href": href}


def section(anchor: str, title: str, *body: Widget | None, lead: Words = None) -> Widget:
    """A part of a page. One with the anchor of a part that the shell has fills that."""
    widgets = [widget for widget in body if widget is not None]
    return {"id": anchor, "title": title, "lead": lead, "body": widgets}


def alert(*words: Words, bad: bool = False) -> Widget:
    return {"words": list(words), "bad": bad}


def note(*words: Words, kind: str = "note") -> Widget:
    """A paragraph."""
    return {"draw": "note", "words": list(words), "kind": kind}


def bar(parts: Iterable[tuple[str, str, float]]) -> Widget:
    """One bar of parts of a whole, in order: the colour, the name and the size of each."""
    return {"draw": "bar", "parts": [part for part in parts if part[2] > 0]}


def legend(entries: Iterable[tuple[str, str, str]]) -> Widget:
    """A list with the colour, the name and a figure of each entry."""
    return {"draw": "legend", "entries": list(entries)}


def tiles(entries: Iterable[tuple[str, str, str]]) -> Widget:
    """A box for each entry, with its name, its figure and its unit."""
    return {"draw": "tiles", "entries": list(entries)}


def table(heads: Sequence[str], rows: Iterable[Sequence[Words]]) -> Widget:
    return {"draw": "table", "heads": list(heads), "rows": list(rows)}
