"""How a robot moved, from the recorded steps of a run: how old its observations were, how it jumped
between chunks, and how smooth its actions were. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hocket.core.data import Array

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """What the executed actions of a run's episodes were like; None where there were none."""

    steps: int
    """Executed actions, those of holding still left out."""
    held: int
    """Steps in which the robot held still."""
    age: float | None
    """Mean age of the observation behind an action, in control steps."""
    oldest: int | None
    """The greatest age."""
    jump: float | None
    """Mean distance from the last action of a chunk to the first of the next, in the units of
    actions."""
    borders: int
    """How many of those there were."""
    change: float | None
    """Mean distance between consecutive actions inside of a chunk: what a jump compares with."""
    jerk: float | None
    """Mean size of the third difference of the actions, per step cubed."""


def motion_of(steps: pa.Table) -> Motion:
    """Measure the table `steps` of a run."""
    table = steps.select(["trial", "step", "chunk", "age", "action"])
    done = table.filter(np.asarray(table["step"]) > 0)
    chunk, age = np.asarray(done["chunk"]), np.asarray(done["age"])
    trial = np.asarray(done["trial"].combine_chunks().dictionary_encode().indices)
    sizes = np.asarray(done["action"].combine_chunks().value_lengths())
    jumps: list[Array] = []
    changes: list[Array] = []
    jerks: list[Array] = []
    flat = np.asarray(done["action"].combine_chunks().flatten(), np.float64)
    begins = np.concatenate([[0], np.cumsum(sizes)])
    starts = np.flatnonzero(np.diff(trial, prepend=-1, append=-1))
    for first, last in itertools.pairwise(starts.tolist()):
        actions = flat[begins[first] : begins[last]].reshape(last - first, -1)
        moved = np.linalg.norm(np.diff(actions, axis=0), axis=1)
        is_border = np.diff(chunk[first:last]) != 0
        jumps.append(moved[is_border])
        changes.append(moved[~is_border])
        jerks.append(np.linalg.norm(np.diff(actions, n=3, axis=0), axis=1))
    is_held = chunk < 0
    ages = age[~is_held]
    return Motion(
        steps=int((~is_held).sum()),
        held=int(is_held.sum()),
        age=_mean([ages]),
        oldest=int(ages.max()) if len(ages) else None,
        jump=_mean(jumps),
        borders=sum(map(len, jumps)),
        change=_mean(changes),
        jerk=_mean(jerks),
    )


def _mean(parts: list[Array]) -> float | None:
    values = np.concatenate(parts) if parts else np.zeros(0)
    return float(values.mean()) if len(values) else None
