"""`hocket train`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from hocket.cli import INTERRUPTED, OK
from hocket.cli.flags.help import OF_ALGORITHMS
from hocket.cli.flags.machines import MachineFlags, machines_asked, machines_of
from hocket.cli.flags.parse import FileFlags, knobs_of, parse, parse_run
from hocket.cli.flags.plan import RunPlan
from hocket.cli.flags.readers import ReaderFlags, make_readers, readers_of
from hocket.cli.flags.settings import scan
from hocket.cli.watch import shown
from hocket.core.plugins import require_extra
from hocket.errors import UsageError
from hocket.records.run_file import load_run, new_folder
from hocket.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Train(FileFlags, ReaderFlags, MachineFlags):
    """Train a policy on the engine that evaluates: by cloning recorded episodes (--algo bc --data
    FOLDER), or by reinforcement learning, chunk-level PPO or GRPO, learning in turns with
    collecting (sync) or at the same time (async). Begins with
    `reference`, with `actor` or `flow` from scratch, with what another run saved (runs/x/best), or
    with your own class as package.module:Class."""

    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """The run folder; must be new or empty. The default is runs/TIME-ENV-POLICY."""
    resume: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Go on with this run from its newest checkpoint; takes no other flags but --watch, --reader
    and those of --machines."""
    watch: bool = False
    """Show the run in the browser while it goes on; see hocket watch --help."""
    dry_run: bool = False
    """Print what would be run, and build no simulator."""


_WHEN_RESUMED = ("--resume", "--watch", "--machines", "--site", "--reader", "--dry-run", "--help")
"""Beginnings of the flags that a resumed run takes."""


@dataclass(frozen=True, kw_only=True)
class ResumeTraining(MachineFlags, ReaderFlags):
    """Go on with a training run from its newest checkpoint: it has its configuration."""

    resume: Annotated[Path, arg(metavar="FOLDER")]
    """The run folder."""
    watch: bool = False
    """Show the run in the browser while it goes on; see hocket watch --help."""
    dry_run: bool = False
    """Print what would be run, and build no simulator."""


def run(arguments: Sequence[str]) -> int:
    """Train; 130 where it was interrupted."""
    plan = plan_of(arguments)
    from hocket.results.terminal import Console

    if plan.is_dry:
        for line in plan.describe():
            Console().print(line, highlight=False, soft_wrap=True)
        return OK
    require_extra("policies", "trained")
    from hocket.train.learner.checkpoint import BEST, latest
    from hocket.train.loop import train

    (config,) = plan.runs.values()
    folder = plan.out
    if folder is None or not plan.is_resumed:
        folder = new_folder(plan.out, config.env, config.policy)
    with shown(folder, wanted=plan.is_watched), machines_of(plan.machines) as machines:
        trained = train(
            config,
            folder,
            resume=plan.is_resumed,
            readers=lambda about: make_readers(plan.readers, about),
            machines=machines,
        )
    if not trained.complete:
        return INTERRUPTED
    found = folder / BEST
    told = f"The best weights: hocket eval --env ... --policy {found}"
    if not found.is_dir():
        told = f"The last weights: hocket eval --env ... --policy {latest(folder)}"
    Console().print(f"Run folder: {folder}\n{told}", highlight=False, soft_wrap=True)
    return OK


def plan_of(arguments: Sequence[str]) -> RunPlan[TrainConfig]:
    """What the arguments ask for."""
    if scan(arguments, "--delay") is not None:
        raise UsageError(
            "hocket train has no --delay: what is learnt from is collected while the world waits. "
            "Evaluate what was trained with hocket eval --delay."
        )
    if scan(arguments, "--resume") is None:
        knobs = knobs_of(TrainConfig, without=("policy_devices",))
        parsed = parse_run(Train, knobs, arguments, verb="train", evaluates_apart=True)
        config = TrainConfig.from_plain(parsed.config)
        _refuse_flags_of_other_algorithms(config)
        return _planned(parsed.flags, config)
    words = [one.partition("=")[0] for one in arguments if one.startswith("--")]
    if any(not word.startswith(_WHEN_RESUMED) for word in words):
        raise UsageError("--resume takes no other flags: the run has its configuration.")
    flags = parse(ResumeTraining, arguments, verb="train")
    return _planned(flags, TrainConfig.from_plain(load_run(flags.resume)))


def _refuse_flags_of_other_algorithms(config: TrainConfig) -> None:
    for algorithm, names in OF_ALGORITHMS.items():
        for name in names:
            is_set = getattr(config, name) != TrainConfig.__dataclass_fields__[name].default
            if is_set and algorithm != config.algo:
                raise UsageError(
                    f"--{name.replace('_', '-')} belongs to --algo {algorithm}, and this is "
                    f"--algo {config.algo}."
                )


def _planned(flags: Train | ResumeTraining, config: TrainConfig) -> RunPlan[TrainConfig]:
    return RunPlan(
        runs={"": config},
        out=flags.resume if isinstance(flags, ResumeTraining) else flags.out,
        is_resumed=isinstance(flags, ResumeTraining),
        readers=readers_of(flags),
        machines=machines_asked(flags),
        is_watched=flags.watch,
        is_dry=flags.dry_run,
    )
