"""`hocket compare`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from hocket.cli.flags.parse import parse

if TYPE_CHECKING:
    from hocket.results.comparing.compare import RunComparison


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Compare two runs trial by trial: the difference a - b with its interval, an exact test, per
    task and overall. Runs of different trials are refused, with what differs."""

    a: Positional[Path]
    """A run folder, or a card (card.json)."""
    b: Positional[Path]
    """The run folder or card to compare it with."""
    tasks_as: Literal["strata", "clusters"] = "strata"
    """strata: a claim about these very tasks. clusters: about new tasks of the same kind, of which
    these are a sample; wide with few tasks, however many trials each has."""
    common: bool = False
    """Where the runs planned different tasks or seeds, compare those that both have."""
    html: Annotated[Path | None, arg(metavar="FILE")] = None
    """Write a page with the differences and every pair."""
    json: bool = False
    """Print the comparison as JSON on standard output."""


def run(arguments: Sequence[str]) -> int:
    """Compare; 0 whichever is better."""
    flags = parse(Compare, arguments, verb="compare")
    from hocket import cli
    from hocket.records.ledger.episodes import COLUMNS, NUMBERS
    from hocket.results.comparing.compare import compare_runs
    from hocket.results.comparing.side import Side

    # The page shows each pair; all else is said by numbers.
    columns = NUMBERS if flags.html is None else COLUMNS
    a, b = Side.open(flags.a, columns), Side.open(flags.b, columns)
    found = compare_runs(a, b, tasks_as=flags.tasks_as, common=flags.common)
    if flags.html is not None:
        from hocket.results.page.compare_page import write_compare_page

        write_compare_page(found, flags.html)
    if flags.json:
        sys.stdout.write(json.dumps(found.to_json(), indent=2) + "\n")
    else:
        _show(found, flags)
    return cli.OK


def _show(found: RunComparison, flags: Compare) -> None:
    from rich.text import Text

    from hocket.results.terminal import Console

    console = Console()
    for letter, path, side in (("a", flags.a, found.a), ("b", flags.b, found.b)):
        console.print(Text(f"{letter}: {path} ({side.subject})"), soft_wrap=True)
    console.print()
    console.print(found.results().rich())
    console.print()
    console.print(Text(found.sentence, style="bold"))
    for note in found.notes:
        console.print(Text(note, style="dim"))
    if flags.html is not None:
        console.print(Text(f"Page: {flags.html}"), soft_wrap=True)
