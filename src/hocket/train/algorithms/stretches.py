"""What collection gives to learning, and its layout, all of it documented here.

A stretch is a whole episode, or a part of one with the observation that follows it: one row for
each executed chunk, in the order of execution. C is the number of chunks, T the chunk's length, A
the size of an action.

`PaddedStretches.rows` is a TensorDict `[S, C]`: S stretches, and the chunks that each executed,
padded at the end to the longest. Its keys:

    observation      nested, `[S, C, ...]`       what the policy saw before each chunk, images as
                                                uint8, with `task` and `prompt` as indexes
    actions          `[S, C, T, A]` float32      as sampled
    executed         `[S, C]` int64              k: how many of T were executed
    mask             `[S, C, T]` bool            which: the first k
    rewards          `[S, C, T]` float64         of each executed step
    log_prob         `[S, C, T]` float32         of each action, under the weights that sampled
    value            `[S, C]` float32            as estimated when sampling
    terminated, truncated  `[S, C]` bool         of the episode, after this chunk
    version, chunk, lane, stretch  `[S, C]` int64
    valid            `[S, C]` bool               False where padded
    extras           nested, `[S, C, ...]`       what the policy needs to evaluate its actions again

Beside it, `texts` are the prompts that `prompt` is an index into. `final` is a TensorDict `[S]` of
the observations that follow each stretch, and `has_final` says where there is one. Advantages are
computed on `[S, C]`; only then `flat` makes rows `[R]` of it, without the padding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from hocket.core.data import Array, Trial
from hocket.errors import HocketError
from hocket.train.networks.contract import PROMPT


class LayoutError(HocketError):
    """Training data that is not laid out as documented."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stretch:
    """A whole episode or a part of one, `[C, ...]` in each array."""

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
    """True if the episode ended for good after the last row; its value is then 0."""
    truncated: bool
    """True if the episode was cut after the last row; its value goes on from `final`."""
    final: Mapping[str, Array] | None
    """The observation after the last row, wherever the stretch did not end by termination."""
    success: bool | None = None
    """Whether the episode succeeded; None where that is not known, or not yet."""
    prompt: str = ""
    """What the policy was told to do, the same in all of an episode."""
    extras: Mapping[str, Array] = field(default_factory=dict)
    """What else the policy needs to evaluate its actions again (a denoising chain): `[C, ...]`."""
    info: Mapping[str, Array] = field(default_factory=dict)
    """The numbers that the env told in `info`, by key: float64 `[C, T]`, NaN where it did not, and
    from k on."""

    def __post_init__(self) -> None:
        count, length = self.rewards.shape if self.rewards.ndim == 2 else (0, 0)
        if count < 1 or self.actions.ndim != 3:
            raise LayoutError(f"A stretch of {self.trial.id} has no rows [C, T].")
        wanted = {
            "actions": (count, length, self.actions.shape[2]),
            "log_prob": (count, length),
            **dict.fromkeys(("executed", "value", "version", "chunk"), (count,)),
        }
        if any(array.shape != (count, length) for array in self.info.values()):
            raise LayoutError(f"What {self.trial.id} told in info is not [C, T].")
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
        """Env steps in this stretch."""
        return int(self.executed.sum())

    @property
    def is_end(self) -> bool:
        """True if the episode ended with this stretch."""
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
        """Return the same as values that `hocket.core.codec` can send."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        trial = self.trial
        plain["trial"] = [trial.suite, trial.task, trial.seed, trial.repeat]
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Stretch:
        suite, task, seed, repeat = plain["trial"]
        trial = Trial(suite=suite, task=task, seed=seed, repeat=repeat)
        return cls(**{**plain, "trial": trial})


Parcel = Sequence[Stretch]
"""Stretches that are learnt from together or not at all: one for PPO, a whole group for GRPO."""


def group_of(trial: Trial, size: int) -> Hashable:
    """Return what all trials of a group of this size, and no others, have in common."""
    return (trial.suite, trial.task, trial.seed, trial.repeat // size)


def in_trial_order(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Sort stretches by what was planned, so that who finished first does not matter."""

    def key(stretch: Stretch) -> tuple[str, str, int, int, int]:
        trial = stretch.trial
        return (trial.suite, trial.task, trial.seed, trial.repeat, int(stretch.chunk[0]))

    return sorted(stretches, key=key)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedStretches:
    """Stretches side by side, as the module's docstring says."""

    rows: TensorDict
    final: TensorDict
    has_final: Tensor
    texts: Sequence[str] = ("",)

    def __post_init__(self) -> None:
        """Refuse what is not `[S, C]` with the chunks of a trajectory along the second axis."""
        rows = self.rows
        if len(rows.batch_size) != 2:
            raise LayoutError(f"Padded stretches are [S, C], not {tuple(rows.batch_size)}.")
        steps = rows["chunk"][:, 1:] - rows["chunk"][:, :-1]
        same = rows["stretch"][:, 1:] == rows["stretch"][:, :-1]
        if not ((steps == 1) & same)[rows["valid"][:, 1:]].all():
            raise LayoutError(
                "The chunks of a trajectory must follow each other along the second axis [S, C]; "
                "this looks like [C, S], or like trajectories joined end to end."
            )
        inner = rows["valid"][:, :-1] & rows["valid"][:, 1:]
        if ((rows["terminated"] | rows["truncated"])[:, :-1] & inner).any():
            raise LayoutError("An episode goes on after its end: stretches must not be joined.")

    def flat(self, **columns: Tensor) -> TensorDict:
        """Return rows `[R]` without padding, with further `columns` `[S, C, ...]` such as
        advantages."""
        valid = self.rows["valid"]
        for name, column in columns.items():
            if column.shape[:2] != valid.shape:
                raise LayoutError(f"{name} is {tuple(column.shape)}, not {tuple(valid.shape)}.")
        picked: TensorDict = self.rows[valid]
        for name, column in columns.items():
            picked[name] = column[valid]
        return picked


def pad_stretches(
    stretches: Sequence[Stretch], device: torch.device | str = "cpu"
) -> PaddedStretches:
    """Lay stretches side by side, padded to the longest."""
    if not stretches:
        raise LayoutError("There is no stretch to learn from.")
    texts: dict[str, int] = {}
    columns: dict[str, list[Array]] = {}
    for index, stretch in enumerate(stretches):
        found = _columns(stretch, index, texts.setdefault(stretch.prompt, len(texts)))
        for key, array in found.items():
            columns.setdefault(key, []).append(array)
    count = max(len(stretch) for stretch in stretches)
    shape = (len(stretches), count)
    rows = TensorDict({}, batch_size=shape, names=("stretch", "chunk"), device=device)
    for key, arrays in columns.items():
        if len(arrays) != len(stretches):
            raise LayoutError(f"{key!r} is in {len(arrays)} of {len(stretches)} stretches.")
        rows[tuple(key.split("|"))] = torch.from_numpy(_pad(key, arrays, count)).to(device)
    final, has_final = _finals(stretches, device)
    final[PROMPT] = rows["observation", PROMPT][:, 0]
    return PaddedStretches(rows=rows, final=final, has_final=has_final, texts=tuple(texts))


def _columns(stretch: Stretch, index: int, prompt: int) -> dict[str, Array]:
    count, length = stretch.rewards.shape
    ends = np.zeros((2, count), np.bool_)
    ends[:, -1] = stretch.terminated, stretch.truncated
    return {
        **{f"observation|{key}": array for key, array in stretch.observation.items()},
        f"observation|{PROMPT}": np.full(count, prompt, np.int64),
        **{f"extras|{key}": array for key, array in stretch.extras.items()},
        "actions": stretch.actions,
        "executed": stretch.executed,
        "mask": np.arange(length) < stretch.executed[:, None],
        "rewards": stretch.rewards,
        "log_prob": stretch.log_prob,
        "value": stretch.value,
        "terminated": ends[0],
        "truncated": ends[1],
        "version": stretch.version,
        "chunk": stretch.chunk,
        "lane": np.full(count, stretch.lane, np.int64),
        "stretch": np.full(count, index, np.int64),
        "valid": np.ones(count, np.bool_),
    }


def _pad(key: str, arrays: Sequence[Array], count: int) -> Array:
    first = arrays[0]
    whole = np.zeros((len(arrays), count, *first.shape[1:]), first.dtype)
    for index, array in enumerate(arrays):
        if array.shape[1:] != first.shape[1:] or array.dtype != first.dtype:
            raise LayoutError(
                f"{key!r} is {array.dtype}{array.shape[1:]} in one stretch and "
                f"{first.dtype}{first.shape[1:]} in another."
            )
        whole[index, : len(array)] = array
    return whole


def _finals(stretches: Sequence[Stretch], device: torch.device | str) -> tuple[TensorDict, Tensor]:
    """Return the observations `[S]` after each stretch, zeros where it ended for good, and which
    of them there are."""
    given: list[Mapping[str, Array] | None] = [
        None if stretch.terminated else stretch.final for stretch in stretches
    ]
    final = TensorDict({}, batch_size=(len(stretches),), device=device)
    known = next((one for one in given if one is not None), None)
    if known is not None:
        for key, like in known.items():
            rows = [np.zeros_like(like) if one is None else one[key] for one in given]
            final[key] = torch.from_numpy(np.stack(rows)).to(device)
    return final, torch.tensor([one is not None for one in given], device=device)
