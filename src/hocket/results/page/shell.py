"""The page around the contents: one file that fetches nothing, light and dark."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from hocket import __version__
from hocket.results.page.markup import Child, Markup, join, tag


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
