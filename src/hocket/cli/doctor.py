"""`hocket doctor`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.cli.flags.parse import parse

if TYPE_CHECKING:
    from rich.table import Table

    from hocket.runs.checks.doctor import Verdict

_STYLE = {"ok": "green", "slow": "yellow", "missing": "red"}


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Say what works on this machine: cores and memory, which runtimes can be used, which backends
    render, on what device and how fast, installed extras, video codecs, and every env and policy
    that has a name. What is missing comes with the exact command that installs it."""

    json: bool = False
    """Print JSON instead of a table."""


def run(arguments: Sequence[str]) -> int:
    """Print the findings; always 0: a machine is not wrong."""
    flags = parse(Doctor, arguments, verb="doctor")
    from hocket import cli
    from hocket.results.terminal import Console
    from hocket.runs.checks.doctor import examine, registry

    findings = examine()
    if flags.json:
        document = {
            "findings": [dataclasses.asdict(finding) for finding in findings],
            "registry": registry(),
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        Console().print(_table(findings, registry()))
    return cli.OK


def _table(findings: Sequence[Verdict], names: dict[str, Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("", "", "state", "detail"):
        table.add_column(column, overflow="fold")
    topic = ""
    for finding in findings:
        table.add_row(
            "" if finding.topic == topic else finding.topic,
            finding.name,
            Text(finding.state, style=_STYLE[finding.state]),
            Text(finding.detail + (f"\n> {finding.advice}" if finding.advice else "")),
        )
        topic = finding.topic
    for number, (kind, known) in enumerate(names.items()):
        table.add_row("" if number else "names", kind, "", Text(", ".join(known)))
    return table
