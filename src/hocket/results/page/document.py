"""The one page, which shows a run that goes on, one that has ended, two against each other, or
many: a shell, scripts that draw, and data.

`hocket watch` serves the shell, and tells the data over a WebSocket. Everywhere else a page is one
file with all of it inside, which fetches nothing: text of others reaches it as JSON, from which
scripts make text and never markup, and in the tables of `summary`, which stand without scripts.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any
from urllib.parse import quote

from hocket import __version__
from hocket.system.text import printable

_SCRIPTS = (
    "text", "charts", "grid", "growing", "tracks", "player", "curves", "report", "episodes", "head",
    "feed", "lanes", "runs", "page",
)  # fmt: skip
BESIDE = "report_data.js"
"""The file with what is too large to lie in a report's page."""


def asset(name: str) -> str:
    """A file of the page as text. `page.js` is all its scripts, which share one scope."""
    folder = resources.files(__package__)
    if name != "page.js":
        return folder.joinpath(name).read_text(encoding="utf-8")
    parts = [folder.joinpath(f"{one}.js").read_text(encoding="utf-8") for one in _SCRIPTS]
    return '(() => {\n"use strict";\n' + "\n".join(parts) + "})();\n"


def live_page(base: str) -> str:
    """The page whose style and scripts are served under `base`, and whose data comes by itself."""
    head = f'<link rel="stylesheet" href="{base}style.css">'
    return _filled(head=head, title="hocket watch", foot=f'<script src="{base}page.js"></script>')


def document(data: Mapping[str, Any], *, summary: str = "", beside: bool = False) -> str:
    """A page in one file. `data` has a `title` and a `kicker`; `summary` is HTML. Scripts that are
    not ours do not run even if one slipped in, unless the page has data `beside` it."""
    script = asset("page.js")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    more = " 'self' file:" if beside else ""
    # What lies beside the page is mostly opened from disk: there `self` means nothing.
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src 'self' file: "
        f"data:; script-src 'sha256-{allowed}'{more}; base-uri 'none'; "
        "form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
    head += f"\n<style>{asset('style.css')}</style>"
    foot = f'<script type="application/json" id="data">{as_json(data)}</script>'
    return _filled(
        head=head,
        title=data["title"],
        kicker=data["kicker"],
        summary=summary,
        foot=f"{foot}\n<script>{script}</script>",
    )


def _filled(*, head: str, title: str, kicker: str = "", summary: str = "", foot: str) -> str:
    """The shell around what a page has inside."""
    found = asset("page.html")
    for name, text in {
        "title": html.escape(printable(title)),
        "kicker": html.escape(printable(kicker)),
        "version": __version__,
        "summary": printable(summary),
        "head": head,
        "foot": foot,  # last: nothing that is inside of it is a place to be filled
    }.items():
        found = found.replace(f"<!--{name}-->", text)
    return found


def as_json(data: Any) -> str:
    """Data as JSON that can stand inside a script element."""
    text = json.dumps(_plain(data), ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    """The value with its text as it may be shown, and None for what is no finite number."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {printable(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def file_link(path: str) -> str:
    """A link to a file below the page's folder. It can neither leave it nor name a scheme."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    return quote("/".join(parts))
