"""`hocket collect`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from hocket.cli.flags.parse import FileFlags, knobs_of, parse_run
from hocket.cli.flags.plan import RunFlags, RunPlan, following, machines_of
from hocket.cli.watch import shown
from hocket.core.contracts.recorder import Followed
from hocket.runs.config import EvalConfig
from hocket.system.text import printable

if TYPE_CHECKING:
    from hocket.core.contracts.recorder import Reader

KNOBS = (
    "env",
    "policy",
    "seed",
    "episodes",
    "lanes",
    "replan",
    "max_steps",
    "record",
    "env_python",
    "policy_python",
    "runtime",
    "start_timeout_s",
)


@dataclass(frozen=True, kw_only=True)
class Collect(RunFlags, FileFlags):
    """Collect a fixed number of episodes of each task straight to a dataset: successes alone,
    unless told otherwise. A collection that was interrupted goes on with the same command."""

    out: Positional[Path]
    """The dataset's folder (or file), which must not exist. The run that it is made from is kept
    beside it, under the same name with .run."""
    to: Annotated[str, arg(metavar="lerobot|hdf5|run")] = "lerobot"
    """LeRobotDataset v3, robomimic's HDF5, or no dataset: the run folder alone."""
    episodes: int
    """Episodes of each task in the dataset. Tasks that lack successes get further trials."""
    failures: bool = False
    """Take every episode, whatever became of it."""
    most: Annotated[int | None, arg(metavar="N")] = None
    """Most trials of each task; by default five times the episodes."""
    record: Literal["numbers", "full"]
    """numbers keeps pictures of envs alone that cannot be shown again from their states; others are
    shown again for the episodes of the dataset. full keeps every picture of every env."""
    fps: Annotated[float | None, arg(metavar="N")] = None
    """Steps per second, where the env does not say."""


def run(arguments: Sequence[str]) -> int:
    """Collect; 1 where a task has too few successes, 130 after Ctrl-C."""
    parsed = parse_run(Collect, knobs_of(EvalConfig, only=KNOBS), arguments, verb="collect")
    from hocket import cli
    from hocket.cli.export import Teller
    from hocket.exports.collect import CollectConfig, collect, run_folder
    from hocket.results.showing.progress import ProgressDisplay
    from hocket.runs.demonstrations.chosen import ExportConfig

    flags = parsed.flags
    config = CollectConfig(
        run=EvalConfig.from_plain({**parsed.config, "video": "none"}),
        to=flags.to,
        failures=flags.failures,
        most=flags.most,
        export=ExportConfig(fps=flags.fps),
    )
    with contextlib.ExitStack() as stack:
        folder = run_folder(flags.out, flags.to)
        plan = RunPlan.of(flags, {"": config.run})
        about = Followed(folder=folder, config=config.run.to_plain())

        def readers() -> list[Reader]:
            told = stack.enter_context(following(plan.readers, about))
            return [stack.enter_context(ProgressDisplay()), *told]

        stack.enter_context(shown(folder, wanted=plan.is_watched))
        teller = stack.enter_context(contextlib.closing(Teller()))
        machines = stack.enter_context(machines_of(plan.machines, more=True))
        done = collect(config, flags.out, readers=readers, watcher=teller, elsewhere=machines)
    sys.stderr.write("".join(f"note: {printable(text)}\n" for text in teller.notes))
    if not done.is_complete:
        sys.stderr.write("Interrupted; the same command goes on from here.\n")
        return cli.INTERRUPTED
    sys.stdout.write(
        f"{flags.out}: {done.episodes} episodes of {done.trials} trials as {flags.to}\n"
        f"Run folder: {done.run}\n"
    )
    return cli.OK
