"""`hocket check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from hocket.cli.flags.parse import FileFlags, knobs_of, parse_run, refuse_bad_run_file
from hocket.core.plugins import did_you_mean
from hocket.errors import UnknownNameError
from hocket.runs.config import EvalConfig

KNOBS = (
    "env",
    "policy",
    "seed",
    "replan",
    "env_python",
    "policy_python",
    "runtime",
    "start_timeout_s",
)


@dataclass(frozen=True, kw_only=True)
class Check(FileFlags):
    """Run one chunk and show what the policy really sees: both specs side by side, the range of
    every input (for a server also of the request that it is sent), the actions against their
    bounds, and a contact sheet of the exact images. The trial is reset again, there and in a new
    env, to see whether the env starts as its seed says. Exits with 1 where env and policy do not
    fit, or a trial cannot be repeated.
    """

    task: Annotated[str | None, arg(metavar="TASK")] = None
    """The task to look at; the first of each suite by default."""
    out: Annotated[Path, arg(metavar="FILE")] = Path("check.png")
    """Where to write the contact sheet; with several envs a number is added."""
    data: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """The LeRobot dataset that the policy was trained on: what it is given, what it answers and
    what its actions do are compared with it, the likeliest mistake first."""


def run(arguments: Sequence[str]) -> int:
    """Check each env; 1 where any does not fit."""
    refuse_bad_run_file(arguments)
    parsed = parse_run(Check, knobs_of(EvalConfig, only=KNOBS), arguments, verb="check")
    from hocket import cli
    from hocket.results.terminal import Console
    from hocket.runs.checks.check import run_check

    config, flags = EvalConfig.from_plain(parsed.config), parsed.flags
    console, has_problems = Console(), False
    for number, suite in enumerate(_with_task(config, flags.task)):
        result = run_check(config, suite=suite, task=flags.task, data=flags.data)
        console.print(result.render())
        path = flags.out if number == 0 else flags.out.with_stem(f"{flags.out.stem}-{number + 1}")
        if result.save_contact_sheet(path):
            who = "policy" if result.sent is None else "server"
            console.print(f"Images as the {who} gets them: {path}", highlight=False)
        has_problems |= bool(result.problems or result.mistakes)
    return cli.FAILED if has_problems else cli.OK


def _with_task(config: EvalConfig, task: str | None) -> Sequence[str]:
    """The envs to look at: where a task is named, those that have it."""
    if task is None or len(config.env) == 1:
        return config.env
    from hocket.runs.assembly import Assembly

    tasks = Assembly(config).tasks()
    found = [suite for suite, infos in tasks.items() if task in [info.name for info in infos]]
    if not found:
        names = [info.name for infos in tasks.values() for info in infos]
        raise UnknownNameError(
            f"No env named here has a task {task!r}.{did_you_mean(task, names)} They have: "
            f"{', '.join(names)}."
        )
    return found
