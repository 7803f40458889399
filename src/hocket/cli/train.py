"""`hocket train`."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from hocket.cli.parse import FileFlags, knobs_of, parse_run, scan
from hocket.errors import UsageError
from hocket.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Train(FileFlags):
    """Improve a policy with reinforcement learning, on the engine that evaluates: chunk-level PPO
    or GRPO, learning in turns with collecting (sync) or at the same time (async). Begins with
    `reference`, with `actor` or `flow` from scratch, with what another run saved (runs/x/best), or
    with your own class as package.module:Class."""

    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """The run folder; must be new or empty. The default is runs/TIME-ENV-POLICY."""
    resume: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Go on with this run from its newest checkpoint; takes no other flags."""


def run(arguments: Sequence[str]) -> int:
    """Train; 130 where it was interrupted."""
    from hocket import cli

    # Python's last collections walk through all of torch: a second of CPU after everything is
    # closed, and several on a busy machine, while Ctrl-C seems not to have been heard.
    atexit.register(gc.freeze)
    folder = scan(arguments, "--resume")
    if folder is not None:
        return _resume(Path(folder), arguments)
    knobs = knobs_of(TrainConfig, without=("runtime", "policy_devices"))
    parsed = parse_run(Train, knobs, arguments, verb="train")
    _require_extra()
    from hocket.records.run_file import new_folder
    from hocket.train.loop import train

    config = TrainConfig.from_plain(parsed.config)
    result = train(config, new_folder(parsed.flags.out, config.env, config.policy))
    return _tell(result.run) if result.complete else cli.INTERRUPTED


def _resume(folder: Path, arguments: Sequence[str]) -> int:
    from hocket import cli

    if len([one for one in arguments if one.startswith("--")]) > 1:
        raise UsageError("--resume takes no other flags: the run has its configuration.")
    _require_extra()
    from hocket.records.run_file import load_run
    from hocket.train.loop import train

    result = train(TrainConfig.from_plain(load_run(folder)), folder, resume=True)
    return _tell(folder) if result.complete else cli.INTERRUPTED


def _tell(folder: Path) -> int:
    from rich.console import Console

    from hocket import cli

    Console().print(
        f"Run folder: {folder}\nThe best weights: hocket eval --env ... --policy {folder}/best",
        highlight=False,
        soft_wrap=True,
    )
    return cli.OK


def _require_extra() -> None:
    from hocket.core.plugins import require_extra

    require_extra("policies", "trained")
