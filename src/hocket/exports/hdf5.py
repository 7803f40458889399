"""HDF5 in robomimic's layout: `data/demo_i` for each episode, and masks that name some of them.

`obs` holds what was seen before each action, `next_obs` (on demand) what was seen after it,
`states` the simulator's state before each action. `dones` is 1 where an episode ended, for
whatever reason; `terminated` and `truncated` tell which.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hocket import __version__
from hocket.core.data import Array, Episode
from hocket.exports import new_file, require, scratch_folder
from hocket.runs.demonstrations.chosen import ChosenRun, ExportConfig, Watcher
from hocket.runs.demonstrations.episodes import Demonstration, Demonstrations
from hocket.system.text import printable
from hocket.workers.sinks.encoder import read_pictures, size_of
from hocket.workers.sinks.video import camera_name

_SLAB = 32
"""How many pictures are written at a time."""
_GYM = 2
"""What robomimic calls the kind of env that is a gym's."""


def write(run: ChosenRun, out: Path, config: ExportConfig, watcher: Watcher) -> None:
    h5py = require("h5py", "h5py", "HDF5 needs", extra="hdf5")
    with new_file(out) as draft, scratch_folder(out) as scratch:
        demonstrations = Demonstrations(run, config, scratch, watcher)
        with h5py.File(draft, "w") as file:
            data = file.create_group("data")
            names, total = dict[str, Episode](), 0
            for number, demonstration in enumerate(demonstrations):
                name = f"demo_{number}"
                _write_demonstration(data.create_group(name), demonstration, config)
                names[name] = demonstration.episode
                total += demonstration.length
            data.attrs["total"] = total
            data.attrs["env_args"] = json.dumps(_env_args(run))
            for name, members in _masks(names, config.valid).items():
                file.create_dataset(f"mask/{name}", data=np.array(members, "S"))


def _write_demonstration(group: Any, demo: Demonstration, config: ExportConfig) -> None:
    trial, length = demo.episode.trial, demo.length
    group.attrs["num_samples"] = length
    # HDF5 takes no text with a NUL in it.
    group.attrs["task"] = printable(trial.task)
    group.attrs["prompt"] = printable(demo.prompt)
    group.attrs["seed"] = trial.seed
    group.attrs["trial"] = printable(trial.id)
    group.attrs["outcome"] = demo.episode.outcome.value
    if demo.label:
        group.attrs["label"] = printable(demo.label)
    group["actions"] = demo.actions
    group["rewards"] = demo.rewards
    group["dones"] = (demo.terminated | demo.truncated).astype(np.int64)
    group["terminated"] = demo.terminated
    group["truncated"] = demo.truncated
    if demo.success is not None:
        group["successes"] = demo.success
    if demo.states is not None:
        group["states"] = demo.states[:length]
    sides = {"obs": slice(0, length)}
    if config.next_obs:
        sides["next_obs"] = slice(1, length + 1)
    for side in sides:
        group.create_group(side)
    for key, rows in demo.observations.items():
        for side, span in sides.items():
            group[side][_name(key)] = rows[span]
    for camera, video in demo.cameras.items():
        _write_pictures(group, _name(camera), video, length, sides)


def _write_pictures(
    group: Any, name: str, video: Path, length: int, sides: Mapping[str, slice]
) -> None:
    height, width = size_of(video)
    shape = (length, height, width, 3)
    chunks = (1, height, width, 3)
    targets = {
        span.start: group[side].create_dataset(name, shape, np.uint8, chunks=chunks)
        for side, span in sides.items()
    }
    for begin, slab in _slabs(read_pictures(video, length + 1)):
        for offset, target in targets.items():
            # Picture i of the video is row i - offset.
            first, last = max(begin, offset), min(begin + len(slab), length + offset)
            if last > first:
                target[first - offset : last - offset] = slab[first - begin : last - begin]


def _slabs(frames: Iterator[Array]) -> Iterator[tuple[int, Array]]:
    begin = 0
    while slab := list(islice(frames, _SLAB)):
        yield begin, np.stack(slab)
        begin += len(slab)


def _masks(names: Mapping[str, Episode], valid: float) -> dict[str, list[str]]:
    """Lists of episodes: by outcome, by task, and to train on or to validate with."""
    seen: Counter[str] = Counter()
    masks: dict[str, list[str]] = {"train": [], "valid": []}
    for name, episode in names.items():
        task = episode.trial.task
        index = seen[task]
        seen[task] += 1
        # Spread evenly over a task's episodes, with nothing random about it.
        is_valid = int((index + 1) * valid + 0.5) > int(index * valid + 0.5)
        split = "valid" if is_valid else "train"
        for mask in (split, episode.outcome.value, f"task_{_name(printable(task))}"):
            masks.setdefault(mask, []).append(name)
    return masks


def _env_args(run: ChosenRun) -> dict[str, Any]:
    suites: Sequence[str] = run.recorded.suites
    return {
        "env_name": ",".join(suites),
        "type": _GYM,
        "env_kwargs": dict(run.config.get("env_config") or {}),
        "policy": run.config.get("policy"),
        "hocket": __version__,
    }


def _name(key: str) -> str:
    return camera_name(key).replace("/", "_")
