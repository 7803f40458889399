"""HTML that cannot be forged: whatever is not `Markup` is escaped when it becomes part of some."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Union
from urllib.parse import quote

_VOID = frozenset({"meta", "input", "br", "rect", "line", "path", "circle"})


class Markup(str):
    """Text that is HTML already. Plain string operations on it give plain, unsafe text again."""

    __slots__ = ()


Child = Union[str, int, None, Iterable["Child"]]
Attribute = Union[str, int, float, bool, None]


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """An element. `class_` gives `class`, `data_x` gives `data-x`; None and False leave out."""
    opened = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{opened}/>")
    return Markup(f"<{name}{opened}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """Pieces one after the other, each escaped where it is no Markup."""
    return Markup("".join(_text(child) for child in children))


def breakable(name: str) -> Markup:
    """A name that may be broken after its separators, where it is too long for its place."""
    pieces = re.split(r"(?<=[_/-])", name)
    return Markup("<wbr/>".join(html.escape(piece) for piece in pieces))


def file_link(path: str) -> str:
    """A link to a file below the page's folder. It can neither leave it nor name a scheme."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    return quote("/".join(parts))


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, (str, int)):
        return html.escape(str(child))
    return "".join(_text(each) for each in child)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(text)}"'
