"""`hocket card`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from hocket.cli.flags.parse import parse
from hocket.system.text import printable


@dataclass(frozen=True, kw_only=True)
class CardFlags:
    """Put a run on a card that others can read, pair against and check without its folder:
    card.json (every number with its interval, what it depends on, and one letter for each trial),
    card.md, a block for a model's page, and .eval_results/<suite>.yaml, as the Hub reads it in a
    model's repository. Others check it with: hocket verify card.json --env ... --policy ..."""

    folder: Positional[Path]
    """The run folder."""
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Where to write; the run folder itself by default."""
    dataset: Annotated[str | None, arg(metavar="OWNER/NAME")] = None
    """The benchmark's dataset on the Hub, for .eval_results; without it the suite's name stands
    there, which the Hub does not know."""


def run(arguments: Sequence[str]) -> int:
    """Write the card."""
    flags = parse(CardFlags, arguments, verb="card")
    from hocket import cli
    from hocket.runs.checks.card import write_card

    for path in write_card(flags.folder, flags.out or flags.folder, dataset=flags.dataset):
        sys.stdout.write(printable(str(path)) + "\n")
    if flags.dataset is None:
        sys.stderr.write(
            "note: .eval_results names the suite where the Hub wants a dataset's id: --dataset "
            "OWNER/NAME\n"
        )
    return cli.OK
