"""`hocket replay`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from hocket.cli.flags.parse import parse_with_runtime
from hocket.system.text import printable


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Run one trial of a run again, in this process (where a debugger works) unless the run had a
    runtime, and compare it step by step with what was recorded: actions, rewards, ends, states.
    Exits with 1 and the first difference where there is one."""

    folder: Positional[Path]
    """The run folder."""
    trial: Positional[Annotated[str, arg(metavar="TRIAL")]]
    """The trial, as reports name it (metaworld:mt10/reach-v3/3), or the end of its name
    (reach-v3/3)."""
    with_policy: bool = False
    """Ask the run's policy again, instead of executing the recorded actions."""
    runtime: Annotated[str | None, arg(metavar="NAME[:ARG]")] = None
    """Where the worker lives; by default where the run's workers did."""


def run(arguments: Sequence[str]) -> int:
    """Verify a trial; 1 where it differs."""
    parsed = parse_with_runtime(Replay, arguments, verb="replay")
    flags = parsed.flags
    from hocket import cli
    from hocket.runs.checks.verify import verify

    verdict = verify(
        flags.folder,
        flags.trial,
        with_policy=flags.with_policy,
        adapt=lambda config: config.elsewhere(flags.runtime, parsed.config["runtime_config"]),
    )
    sys.stdout.write(printable(f"{verdict.trial.id}: {verdict}") + "\n")
    if verdict.difference is not None and flags.with_policy:
        from hocket.records.run_file import load_about

        level = load_about(flags.folder).get("exactness", "environment")
        if level != "bitwise":
            sys.stdout.write(
                f"The run's exactness is {level!r}: its policy may answer otherwise in a batch of "
                f"another size or at another time.\n"
            )
    return cli.OK if verdict.difference is None else cli.FAILED
