"""What collection gives to learning: segments of trajectories, one row for each executed chunk.

A segment is a whole episode, or a stretch of one with the observation that follows it. Rows stay in
the order in which they were executed; C is the number of chunks, T the chunk's length, A the size
of an action.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hocket.core.data import Array, Trial
from hocket.errors import HocketError


class LayoutError(HocketError):
    """Training data that is not laid out as documented."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """A stretch of one trajectory, `[C, ...]` in each array."""

    trial: Trial
    attempt: int
    lane: int
    observation: Mapping[str, Array]
    """What the policy saw, `[C, ...]` for each key."""
    actions: Array
    """What it sampled, before clipping to the env's bounds: `[C, T, A]` float32."""
    executed: Array
    """How many actions k of each chunk were executed, 1 to T: `[C]` int64."""
    rewards: Array
    """The reward of each step, zeros from k on: `[C, T]` float64."""
    log_prob: Array
    """The log-probability of each action under the weights that sampled it: `[C, T]` float32."""
    value: Array
    """The return to expect, as estimated when sampling: `[C]` float32."""
    version: Array
    """The version of the weights that sampled each chunk: `[C]` int64."""
    chunk: Array
    """The index of each chunk in the attempt, consecutive: `[C]` int64."""
    terminated: bool
    """Whether the episode ended for good after the last row; its value is then 0."""
    truncated: bool
    """Whether the episode was cut after the last row; its value goes on from `final`."""
    final: Mapping[str, Array] | None
    """The observation after the last row, wherever the segment did not end by termination."""
    success: bool | None = None
    """Whether the episode succeeded; None where that is not known, or not yet."""
    extras: Mapping[str, Array] = field(default_factory=dict)
    """What else the policy needs to evaluate its actions again (a denoising chain): `[C, ...]`."""

    def __post_init__(self) -> None:
        count, length = self.rewards.shape if self.rewards.ndim == 2 else (0, 0)
        if count < 1 or self.actions.ndim != 3:
            raise LayoutError(f"A segment of {self.trial.id} has no rows [C, T].")
        wanted = {
            "actions": (count, length, self.actions.shape[2]),
            "log_prob": (count, length),
            **dict.fromkeys(("executed", "value", "version", "chunk"), (count,)),
        }
        for name, shape in wanted.items():
            if getattr(self, name).shape != shape:
                raise LayoutError(
                    f"{name} of {self.trial.id} has shape {getattr(self, name).shape}, not {shape}."
                )
        for key, array in (*self.observation.items(), *self.extras.items()):
            if len(array) != count:
                raise LayoutError(f"{key!r} of {self.trial.id} has {len(array)} rows, not {count}.")
        if (np.diff(self.chunk) != 1).any():
            raise LayoutError(f"The chunks of {self.trial.id} are not consecutive: {self.chunk}.")
        if (self.executed < 1).any() or (self.executed > length).any():
            raise LayoutError(f"{self.trial.id} executed {self.executed} of {length} actions.")
        if self.final is None and not self.terminated:
            raise LayoutError(f"{self.trial.id} was cut off, but not observed there.")

    def __len__(self) -> int:
        return len(self.executed)

    @property
    def steps(self) -> int:
        """Env steps in this segment."""
        return int(self.executed.sum())

    @property
    def is_end(self) -> bool:
        """Whether the episode ended with this segment."""
        return self.terminated or self.truncated

    @property
    def oldest(self) -> int:
        """The version of the oldest weights in it: what its staleness is counted from."""
        return int(self.version.min())

    @property
    def total_reward(self) -> float:
        """The sum of rewards, not discounted."""
        return float(self.rewards.sum())

    def to_plain(self) -> dict[str, Any]:
        """Returns the same as values that `msgpack_numpy` can send."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        trial = self.trial
        plain["trial"] = [trial.suite, trial.task, trial.seed, trial.repeat]
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Segment:
        """Reads what `to_plain` returned."""
        suite, task, seed, repeat = plain["trial"]
        trial = Trial(suite=suite, task=task, seed=seed, repeat=repeat)
        return cls(**{**plain, "trial": trial})


Parcel = Sequence[Segment]
"""Segments that are learnt from together or not at all: one for PPO, a whole group for GRPO."""


def in_trial_order(segments: Sequence[Segment]) -> list[Segment]:
    """Sorts segments by what was planned, so that who finished first does not matter."""

    def key(segment: Segment) -> tuple[str, str, int, int, int]:
        trial = segment.trial
        return (trial.suite, trial.task, trial.seed, trial.repeat, int(segment.chunk[0]))

    return sorted(segments, key=key)
