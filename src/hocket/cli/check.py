"""`hocket check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from tyro.conf import arg

from hocket.cli.subject import Subject, parse, refuse_bad_run_file
from hocket.core.plugins import did_you_mean
from hocket.errors import UnknownNameError

if TYPE_CHECKING:
    from hocket.runs.config import EvalConfig


@dataclass(frozen=True, kw_only=True)
class Check(Subject):
    """Run one chunk and show what the policy really sees: both specs side by side, the range of
    every input (for a server also of the request that it is sent), the actions against their
    bounds, and a contact sheet of the exact images. Exits with 1 where env and policy do not fit.
    """

    NOT_CONFIG: ClassVar[frozenset[str]] = frozenset({"config", "task", "out"})

    task: Annotated[str | None, arg(metavar="TASK")] = None
    """The task to look at; the first of each suite by default."""
    replan: Annotated[int | None, arg(metavar="K")] = None
    """Execute only the first K actions of the chunk."""
    out: Annotated[Path, arg(metavar="FILE")] = Path("check.png")
    """Where to write the contact sheet; with several envs a number is added."""


def run(arguments: Sequence[str]) -> int:
    """Check each env; 1 where any does not fit."""
    refuse_bad_run_file(arguments)
    parsed = parse(Check, arguments, verb="check")
    from rich.console import Console

    from hocket import cli
    from hocket.runs.check import run_check
    from hocket.runs.evaluation import EvalConfig

    config, flags = EvalConfig.from_plain(parsed.config), parsed.flags
    console, has_problems = Console(), False
    for number, suite in enumerate(_with_task(config, flags.task)):
        result = run_check(config, suite=suite, task=flags.task)
        console.print(result.render())
        path = flags.out if number == 0 else flags.out.with_stem(f"{flags.out.stem}-{number + 1}")
        if result.save_contact_sheet(path):
            who = "policy" if result.sent is None else "server"
            console.print(f"Images as the {who} gets them: {path}", highlight=False)
        has_problems |= bool(result.problems)
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
