"""HTML that cannot be forged, and the page around it.

Whatever is not `Markup` is escaped when it becomes part of some. A page is one file that fetches
nothing, light and dark.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Union
from urllib.parse import quote

from hocket import __version__
from hocket.system.text import printable

_VOID = frozenset({"meta", "input", "br", "rect", "line", "path", "circle"})


class Markup(str):
    """Text that is HTML already. Plain string operations on it give plain, unsafe text again."""

    __slots__ = ()


Child = Union[str, int, None, Iterable["Child"]]
Attribute = Union[str, int, float, bool, None]


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """An element. `class_` gives `class`, `data_x` gives `data-x`; an attribute that is None or
    False is left out."""
    opened = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{opened}/>")
    return Markup(f"<{name}{opened}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """The pieces one after the other, each escaped where it is no Markup."""
    return Markup("".join(_text(child) for child in children))


def table(
    heads: Sequence[str],
    rows: Iterable[Markup],
    *,
    numbers: Collection[str] = (),
    **attributes: Attribute,
) -> Markup:
    """A table; the heads of `numbers` stand to the right, as their cells do."""
    head = tag("tr", *(tag("th", name, class_="n" if name in numbers else None) for name in heads))
    return tag("table", tag("thead", head), tag("tbody", *rows), **attributes)


def breakable(name: str) -> Markup:
    """A name that may be broken after its separators, where it is too long for its line."""
    pieces = re.split(r"(?<=[_/-])", name)
    return Markup("<wbr/>".join(html.escape(printable(piece)) for piece in pieces))


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
        return html.escape(printable(str(child)))
    return "".join(_text(each) for each in child)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(printable(text))}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page, which its contents link to."""

    anchor: str
    title: str
    body: Markup
    lead: Child = None
    """One sentence below the title."""


def document(
    *, title: str, kicker: str, head: Markup, sections: Sequence[Section], notes: Child = None
) -> str:
    """A whole page. Scripts that are not ours do not run even if one slipped in."""
    style, script = _asset("style.css"), _asset("page.js")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Videos lie beside the page, which is mostly opened from disk: there `self` means nothing.
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src 'self' file:; "
        f"script-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    )
    top = join(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"hocket {__version__}"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    links = [tag("a", section.title, href=f"#{section.anchor}") for section in sections]
    body = join(
        tag("header", tag("p", kicker, class_="kicker"), tag("h1", title), head, notes),
        tag("nav", *links, aria_label="Contents"),
        tag("main", *(_section(section) for section in sections)),
        tag(
            "footer",
            f"Made by hocket {__version__}. Every figure carries its n; intervals are 95 %.",
        ),
        tag("dialog", id="theatre"),
        tag("script", Markup(script)),
    )
    html = tag("html", tag("head", top), tag("body", body), lang="en")
    return f"<!doctype html>\n{html}\n"


def _section(section: Section) -> Markup:
    lead = tag("p", section.lead, class_="lead") if section.lead else None
    return tag("section", tag("h2", section.title), lead, section.body, id=section.anchor)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
