"""Each start of a training run: what it depends on, to which one that goes on is held, and who
follows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hocket import rooms
from hocket.core import plugins
from hocket.core.contracts.recorder import Followed, Reader
from hocket.records import program
from hocket.records.digests import FileDigests
from hocket.records.program import Known, changes, unlike
from hocket.records.provenance import places_of, provenance
from hocket.records.run_file import load_about, save_run
from hocket.train.config import TrainConfig


def depends_on(config: TrainConfig) -> dict[str, Any]:
    """What its numbers depend on, with the digests of the files that it names."""
    files = FileDigests(places_of(config, [config.weights, *config.reward_models])).finish()
    return {**provenance(config, config.functions), "files": files}


def hold(run: Path, now: Known, *, allows_changes: bool) -> None:
    """Raise where a run would go on with another program than those of its earlier starts."""
    about = load_about(run)
    found = unlike([about, *about.get("legs", ())], now)
    advice = f"go on with `hocket train --resume {run} --allow-changes`"
    program.hold(found, advice, allows=allows_changes)


def save_leg(run: Path, config: TrainConfig, leg: Known, *, env_steps: int) -> None:
    """Add a start to those that the run's file names; the first one's stays as it was."""
    about = load_about(run)
    legs = [*about.get("legs", ()), {"env_steps": env_steps, **leg, "differs": changes(about, leg)}]
    save_run(run, config.to_plain(), about={**about, "legs": legs})


def note_edits(run: Path, config: TrainConfig, leg: Known) -> Sequence[str]:
    """Keep and return what was edited since a leg began."""
    if found := changes(leg, depends_on(config)):
        about = load_about(run)
        about["changed"] = [*about.get("changed", ()), *found]
        save_run(run, config.to_plain(), about=about)
    return found


def readers_of(
    run: Path,
    config: TrainConfig,
    state: Mapping[str, Any] | None,
    readers: Callable[[Followed], Sequence[Reader]],
    stack: contextlib.ExitStack,
) -> list[Reader]:
    """The readers of a run, TensorBoard's among them where it can be told; `stack` closes them."""
    resumed_at = None if state is None else state["env_steps"]
    about = Followed(folder=run, config=config.to_plain(), resumed_at=resumed_at)
    made: list[Reader] = []
    given = readers(about)
    if rooms.is_here("telemetry"):
        given = (plugins.load("readers", "tensorboard")("", about), *given)
    for reader in given:
        stack.callback(reader.close)
        made.append(reader)
    return made
