"""How a run was made: enough to make it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket.results.page.markup import join, tag
from hocket.results.page.recorded import RecordedRun
from hocket.results.page.shell import Section
from hocket.results.report import EXACTNESS


def facts_section(run: RecordedRun) -> Section:
    """The exact command, configuration, versions and exactness."""
    command = run.about.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    shown = shlex.join([Path(words[0]).name, *words[1:]]) if words else "not recorded"
    lists = [
        ("Configuration", _flat(run.report.config)),
        ("Versions", _flat(run.about.get("versions") or {"hocket": run.report.version})),
        ("Machine", _flat(run.about.get("machine") or {})),
    ]
    columns = [
        tag(
            "div",
            tag("h3", title),
            tag("dl", ((tag("dt", k), tag("dd", v)) for k, v in facts)),
        )
        for title, facts in lists
        if facts
    ]
    level = join(tag("b", run.report.exactness), ": ", EXACTNESS[run.report.exactness])
    body = join(
        tag("pre", shown, class_="wrap"),
        tag("p", "Exactness ", level, class_="note"),
        tag("div", *columns, class_="facts"),
    )
    return Section(anchor="run", title="How it was run", body=body)


def _flat(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values; what is unset is left out, what is nested is spelled with dots."""
    found: list[tuple[str, str]] = []
    for key, value in facts.items():
        if isinstance(value, Mapping):
            found += [(f"{key}.{inner}", text) for inner, text in _flat(value)]
        elif isinstance(value, (list, tuple)):
            found += [(str(key), ", ".join(map(str, value)))] if value else []
        elif isinstance(value, int) and key.endswith("_bytes"):
            found.append((key.removesuffix("_bytes"), f"{value / 2**30:.1f} GiB"))
        elif value is not None:
            found.append((str(key), str(value)))
    return found
