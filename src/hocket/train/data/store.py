"""The recorded steps that a run learns from, as arrays in its folder.

    <run>/data/   data.json   0.bin 1.bin ...

They are read once, when the run begins: whoever resumes it, and a learner in another process, find
the same rows in the same order. Arrays are mapped, so that pictures need not fit into memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hocket.core.data import Array
from hocket.core.specs import TaskInfo
from hocket.errors import RunFolderError
from hocket.system.durable import disk_error, drafted
from hocket.train.networks.contract import Shapes

DATA = "data"
_TABLE = "data.json"
_ACTIONS, _REWARDS = "actions", "rewards"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """A recorded episode of N steps: row i is what was seen before action i."""

    name: str
    """What messages call it."""
    task: int
    """The index of its task in `Shapes.tasks`."""
    prompt: str
    actions: Array
    """`[N, A]`."""
    observations: Mapping[str, Array]
    """Arrays `[N, ...]` by the env's keys, without pictures."""
    pictures: Mapping[str, Iterable[Array]]
    """N pictures of each camera that is read, by the env's keys."""
    rewards: Array | None = None
    """The env's own of each step, `[N]`; None where they were not kept."""
    terminated: bool = True
    """False of an episode that was cut off."""
    success: bool | None = True
    """None where there is nothing to succeed at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is read of recorded episodes."""

    shapes: Shapes
    tasks: Sequence[TaskInfo]
    """What the suites say of `shapes.tasks`, in that order."""
    inputs: Sequence[str]
    """Observation keys that the network reads."""
    first: int | None
    """How many episodes of each task are taken from a folder; None for all."""
    reward: Callable[[Recorded], Array] | None = None
    """What each step of an episode is worth, `[N]`; None where that is not learnt from."""
    judges: bool = False
    """True where failures are read too, and what was seen after the last action, as a row with an
    action that counts for nothing."""

    @property
    def cameras(self) -> tuple[str, ...]:
        """The keys of `inputs` that are pictures."""
        return tuple(key for key in self.inputs if key in self.shapes.cameras)


def taught(whole: Recorded, is_expert: Array | None) -> Iterator[Recorded]:
    """The parts of an episode that an expert did; all of it where nobody could take over."""
    if is_expert is None or is_expert.all():
        yield whole
        return
    edges = np.flatnonzero(np.diff(np.r_[False, is_expert, False]))
    films = {key: list(film) for key, film in whole.pictures.items()}
    for begin, end in edges.reshape(-1, 2).tolist():
        part = slice(begin, end)
        yield replace(
            whole,
            actions=whole.actions[part],
            observations={key: rows[part] for key, rows in whole.observations.items()},
            pictures={key: film[part] for key, film in films.items()},
            rewards=None if whole.rewards is None else whole.rewards[part],
            terminated=whole.terminated and end == len(whole.actions),
        )


class DataWriter:
    """Appends episodes to a folder; `finish` makes it whole. Only the wanted inputs are kept."""

    def __init__(self, folder: Path, wanted: Wanted, after: str = "") -> None:
        """`after` names what is appended to a folder that is whole; what was appended under that
        name before is written anew."""
        self._folder = folder
        self._shapes = wanted.shapes
        self._inputs = wanted.inputs
        self._files: dict[str, BinaryIO] = {}
        self._lengths: list[int] = []
        self._tasks: list[int] = []
        self._prompts: list[str] = []
        self._terminated: list[bool] = []
        self._reward = wanted.reward
        self._after = after
        self._appended: dict[str, int] = {}
        """How many episodes there were before what was appended, by its name."""
        if after:
            self._go_on()

    @property
    def episodes(self) -> int:
        return len(self._lengths)

    @property
    def steps(self) -> int:
        return sum(self._lengths)

    def add(self, one: Recorded) -> None:
        """Append an episode; its arrays must be those of the env."""
        size = self._shapes.action_size
        if one.actions.shape[1:] != (size,):
            raise RunFolderError(
                f"{one.name} has actions of shape {one.actions.shape[1:]}; the env takes {size} "
                f"numbers."
            )
        try:
            self._append(_ACTIONS, one.actions.astype(np.float32))
            if self._reward is not None:
                self._append(_REWARDS, self._reward(one).astype(np.float32))
            for key in self._inputs:
                if key in self._shapes.cameras:
                    self._append_pictures(one, key)
                else:
                    self._append(key, self._fitting(one, key))
        except OSError as exc:
            raise disk_error(exc, self._folder) from exc
        self._lengths.append(len(one.actions))
        self._tasks.append(one.task)
        self._prompts.append(one.prompt)
        self._terminated.append(one.terminated)

    def finish(self) -> None:
        """Write what the arrays are."""
        self.close()
        specs = {key: self._shapes.observations[key] for key in self._inputs}
        arrays: dict[str, Any] = {_ACTIONS: [[self._shapes.action_size], "float32"]}
        if self._reward is not None:
            arrays[_REWARDS] = [[], "float32"]
        arrays |= {key: [list(spec.shape), spec.dtype] for key, spec in specs.items()}
        table = {
            "lengths": self._lengths,
            "tasks": self._tasks,
            "prompts": self._prompts,
            "terminated": self._terminated,
            "appended": self._appended,
            "arrays": arrays,
        }
        with drafted(self._folder / _TABLE) as draft:
            draft.write_text(json.dumps(table))

    def _go_on(self) -> None:
        """Take up what is there, and forget what is from here on."""
        table: dict[str, Any] = json.loads((self._folder / _TABLE).read_text())
        count = table["appended"].get(self._after, len(table["lengths"]))
        known = {name: n for name, n in table["appended"].items() if n < count}
        self._appended = {**known, self._after: count}
        self._lengths, self._tasks = table["lengths"][:count], table["tasks"][:count]
        self._prompts, self._terminated = table["prompts"][:count], table["terminated"][:count]
        for index, (key, (shape, dtype)) in enumerate(table["arrays"].items()):
            file = open(self._folder / f"{index}.bin", "r+b")  # noqa: SIM115 - closed by `close`
            self._files[key] = file
            file.truncate(self.steps * int(np.prod(shape)) * np.dtype(dtype).itemsize)
            file.seek(0, 2)

    def close(self) -> None:
        """Close the files. Closing twice is safe."""
        for file in self._files.values():
            file.close()

    def _append(self, key: str, rows: Array) -> None:
        if key not in self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{len(self._files)}.bin"
            self._files[key] = open(path, "wb")  # noqa: SIM115 - closed by `close`
        self._files[key].write(np.ascontiguousarray(rows).data)

    def _append_pictures(self, one: Recorded, key: str) -> None:
        wanted = self._shapes.observations[key].shape
        if key not in one.pictures:
            raise RunFolderError(f"{one.name} has no pictures of {key!r}, which the policy reads.")
        count = 0
        for picture in one.pictures[key]:
            if picture.shape != wanted:
                raise RunFolderError(
                    f"{one.name} has pictures {picture.shape} of {key!r}, and the env gives "
                    f"{wanted}. Run in an env with the settings that were recorded with (--env.*)."
                )
            self._append(key, picture)
            count += 1
        if count != len(one.actions):
            raise RunFolderError(
                f"{one.name} has {count} pictures of {key!r} and {len(one.actions)} actions."
            )

    def _fitting(self, one: Recorded, key: str) -> Array:
        spec, rows = self._shapes.observations[key], one.observations.get(key)
        if rows is None:
            known = ", ".join(map(repr, one.observations)) or "no arrays"
            raise RunFolderError(
                f"{one.name} lacks {key!r}, which the policy reads; it has {known}."
            )
        wanted = (len(one.actions), *spec.shape)
        if rows.size != np.prod(wanted):
            raise RunFolderError(
                f"{key!r} is {rows.shape[1:]} in {one.name}, and {spec.shape} in the env."
            )
        fitting: Array = rows.reshape(wanted).astype(spec.dtype)
        return fitting


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Data:
    """All recorded steps, row by row, episode after episode."""

    actions: Array
    """`[R, A]` float32."""
    observations: Mapping[str, Array]
    """`[R, ...]` by key, pictures included."""
    first: Array
    """The first row of the episode of each row, `[R]` int64."""
    last: Array
    """The last row of the episode of each row, `[R]` int64."""
    task: Array
    """`[R]` int64."""
    prompt: Array
    """What was to be done in each row, an index into `texts`, `[R]` int64."""
    texts: tuple[str, ...]
    """The prompts, each once."""
    rewards: Array
    """`[R]` float32; zeros where they are not learnt from."""
    terminated: Array
    """Whether the episode of each row ended for good, `[R]` bool."""

    def __len__(self) -> int:
        return len(self.actions)


def open_data(folder: Path, appended: int | None = None) -> Data:
    """Map what a `DataWriter` wrote; of what was appended this many parts, None for all."""
    try:
        table: dict[str, Any] = json.loads((folder / _TABLE).read_text())
        begins = [*table["appended"].values(), None]
        count = None if appended is None else begins[min(appended, len(begins) - 1)]
        lengths = np.array(table["lengths"][:count], np.int64)
        rows = int(lengths.sum())
        arrays = {
            key: np.memmap(folder / f"{i}.bin", np.dtype(dtype), "r", shape=(rows, *shape))
            for i, (key, (shape, dtype)) in enumerate(table["arrays"].items())
        }
    except (OSError, ValueError, KeyError) as exc:
        raise RunFolderError(f"The recorded data in {str(folder)!r} cannot be read: {exc}") from exc
    ends, prompts = np.cumsum(lengths), table["prompts"][:count]
    texts = tuple(dict.fromkeys(prompts))
    actions = arrays.pop(_ACTIONS)
    rewards = arrays.pop(_REWARDS, np.zeros(rows, np.float32))
    return Data(
        actions=actions,
        observations=arrays,
        first=np.repeat(ends - lengths, lengths),
        last=np.repeat(ends - 1, lengths),
        task=np.repeat(np.array(table["tasks"][:count], np.int64), lengths),
        prompt=np.repeat(np.array([texts.index(one) for one in prompts], np.int64), lengths),
        texts=texts,
        rewards=rewards,
        terminated=np.repeat(np.array(table["terminated"][:count], np.bool_), lengths),
    )
