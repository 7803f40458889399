"""`hocket train`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from hocket.cli import INTERRUPTED, OK
from hocket.cli.flags.machines import MachineFlags, machines_of
from hocket.cli.flags.parse import FileFlags, knobs_of, parse, parse_run, scan
from hocket.cli.flags.telemetry import told_to
from hocket.cli.watch import shown
from hocket.core.plugins import require_extra
from hocket.errors import UsageError
from hocket.records.run_file import load_run, new_folder
from hocket.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Train(FileFlags, MachineFlags):
    """Train a policy on the engine that evaluates: by cloning recorded episodes (--algo bc --data
    FOLDER), or by reinforcement learning, chunk-level PPO or GRPO, learning in turns with
    collecting (sync) or at the same time (async). Begins with
    `reference`, with `actor` or `flow` from scratch, with what another run saved (runs/x/best), or
    with your own class as package.module:Class."""

    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """The run folder; must be new or empty. The default is runs/TIME-ENV-POLICY."""
    resume: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Go on with this run from its newest checkpoint; takes no other flags but --watch and those
    of --machines."""
    telemetry: Annotated[str | None, arg(metavar="otlp[=URL]")] = None
    """Send runs, episodes, chunks, inferences, stalls and videos as OpenTelemetry spans and metrics
    to a collector, by default at http://localhost:4318 (pip install 'hocket[otel]')."""
    watch: bool = False
    """Show the run in the browser while it goes on; see hocket watch --help."""


_WHEN_RESUMED = ("--resume", "--watch", "--machines", "--site", "--help")
"""Beginnings of the flags that a resumed run takes."""


@dataclass(frozen=True, kw_only=True)
class Resume(MachineFlags):
    """Go on with a training run from its newest checkpoint: it has its configuration."""

    resume: Annotated[Path, arg(metavar="FOLDER")]
    """The run folder."""
    watch: bool = False
    """Show the run in the browser while it goes on; see hocket watch --help."""


def run(arguments: Sequence[str]) -> int:
    """Train; 130 where it was interrupted."""
    if scan(arguments, "--delay") is not None:
        raise UsageError(
            "hocket train has no --delay: what is learnt from is collected while the world waits. "
            "Evaluate what was trained with hocket eval --delay."
        )
    resumed = scan(arguments, "--resume")
    if resumed is None:
        knobs = knobs_of(TrainConfig, without=("policy_devices",))
        parsed = parse_run(Train, knobs, arguments, verb="train", evaluates_apart=True)
    else:
        words = [one.partition("=")[0] for one in arguments if one.startswith("--")]
        if any(not word.startswith(_WHEN_RESUMED) for word in words):
            raise UsageError("--resume takes no other flags: the run has its configuration.")
        resuming = parse(Resume, arguments, verb="train")
    require_extra("policies", "trained")
    from hocket.results.terminal import Console
    from hocket.train.learner.checkpoint import BEST, latest
    from hocket.train.loop import train

    if resumed is None:
        config = TrainConfig.from_plain(parsed.config)
        folder = new_folder(parsed.flags.out, config.env, config.policy)
        is_watched, target = parsed.flags.watch, parsed.flags.telemetry
        flags: MachineFlags = parsed.flags
    else:
        folder, is_watched, target, flags = resuming.resume, resuming.watch, None, resuming
        config = TrainConfig.from_plain(load_run(folder))
    with (
        shown(folder, wanted=is_watched),
        told_to(target, folder) as readers,
        machines_of(flags) as machines,
    ):
        is_resumed = resumed is not None
        trained = train(config, folder, resume=is_resumed, readers=readers, machines=machines)
    if not trained.complete:
        return INTERRUPTED
    found = folder / BEST
    told = f"The best weights: hocket eval --env ... --policy {found}"
    if not found.is_dir():
        told = f"The last weights: hocket eval --env ... --policy {latest(folder)}"
    Console().print(f"Run folder: {folder}\n{told}", highlight=False, soft_wrap=True)
    return OK
