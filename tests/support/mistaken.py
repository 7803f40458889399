"""MetaWorld, and a policy, with a mistake of a kind that makes every evaluation fail."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hocket.adapters.envs.metaworld import MetaWorld, MetaWorldConfig
from hocket.core.data import Array, Batch
from hocket.core.specs import ArraySpec, PolicySpec, TaskInfo
from hocket.runs.demonstrations.lerobot_dataset import DatasetFiles, matrix

STATE, IMAGE, WRIST = "observation/state", "observation/image", "observation/wrist_image"

OF_ENVS = {
    "upside down": "upside down",
    "half a turn": "half a turn",
    "mirrored": "mirrored",
    "cameras exchanged": "like the data's 'observation.images.wrist_image'",
    "another camera": "like no first picture",
    "red and blue": "red and blue",
    "floats": "float32",
    "black pictures": "from 0 to 0",
    "state order": "order",
    "millimetres": "unit",
    "state zero": "never was like that",
    "gripper": "gripper",
    "action scale": "times as far",
    "action order": "order",
    "rate": "frames a second",
    "prompt": "prompt",
}
"""Mistakes of an env, and what says which it is."""
OF_POLICIES = {
    "gripper answered": "gripper",
    "unnormalised": "unnormalised",
    "answers scaled": "times as large",
    "untrained": "nothing like",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MistakenConfig(MetaWorldConfig):
    task: str = "push"
    mistake: str = ""


class Mistaken(MetaWorld):
    """A task of MetaWorld, all right but for one thing."""

    Config: ClassVar = MistakenConfig

    def __init__(self, argument: str, config: MistakenConfig) -> None:
        super().__init__(config.task, config)
        self._mistake = config.mistake

    def tasks(self) -> tuple[TaskInfo, ...]:
        changes: dict[str, Any] = {
            "prompt": {"prompt": "do it"},
            "rate": {"control_rate": 40.0},
        }
        told = changes.get(self._mistake, {})
        return tuple(dataclasses.replace(task, **told) for task in super().tasks())

    def make(self, task: str) -> Any:
        from hocket.adapters.envs.metaworld.env import MetaWorldEnv

        mistake = self._mistake

        class MistakenEnv(MetaWorldEnv):
            def observe(self) -> dict[str, Array]:
                return dict(spoilt(super().observe(), mistake, self))

            def advance(self, action: Array) -> Any:
                action = np.array(action)
                if mistake == "gripper":
                    action[3] = -action[3]
                if mistake == "action scale":
                    action[:3] = action[:3] / 4
                if mistake == "action order":
                    action[:3] = action[[1, 2, 0]]
                if mistake == "rate":
                    super().advance(action)
                return super().advance(action)

        return MistakenEnv(task, self._config)


def spoilt(seen: dict[str, Array], mistake: str, env: Any) -> dict[str, Array]:
    """What is seen, with one thing wrong in it."""
    turns: dict[str, Any] = {
        "upside down": lambda p: p[::-1],
        "half a turn": lambda p: p[::-1, ::-1],
        "mirrored": lambda p: p[:, ::-1],
        "red and blue": lambda p: p[..., ::-1],
        "floats": lambda p: p.astype(np.float32) / 255,
        "black pictures": np.zeros_like,
    }
    if mistake in turns:
        seen = {k: turns[mistake](v) if v.ndim == 3 else v for k, v in seen.items()}
    if mistake == "cameras exchanged" and {IMAGE, WRIST} <= set(seen):
        seen[IMAGE], seen[WRIST] = seen[WRIST], seen[IMAGE]
    if mistake == "another camera" and IMAGE in seen:
        seen[IMAGE] = env._image("corner3")
    state = seen[STATE]
    if mistake == "state order":
        seen[STATE] = np.concatenate([state[3:], state[:3]])
    if mistake == "millimetres":
        seen[STATE] = np.concatenate([1000 * state[:3], state[3:]])
    if mistake == "state zero":
        seen[STATE] = np.concatenate([np.zeros(3), state[3:]])
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestConfig:
    data: str = ""
    mistake: str = ""


class Nearest:
    """Answers what was done in the dataset where the state was most like this: it has learnt the
    data by heart."""

    Config: ClassVar = NearestConfig

    def __init__(self, argument: str, config: NearestConfig) -> None:
        dataset = DatasetFiles(Path(config.data))
        rows = [dataset.rows(one) for one in dataset.episodes]
        self._mistake = config.mistake
        self._states = np.concatenate([matrix(one["observation.state"]) for one in rows])
        self._spread = self._states.std(axis=0) + 1e-3
        self._chunks = np.concatenate([chunks(matrix(one["action"])) for one in rows])
        inputs = {STATE: ArraySpec(shape=self._states.shape[1:], dtype="f4")}
        for name, about in dataset.features.items():
            if about["dtype"] == "video":
                key = name.replace("observation.images.", "observation/")
                inputs[key] = ArraySpec(shape=tuple(about["shape"]), dtype="")
        cameras = tuple(key for key in inputs if key != STATE)
        self.spec = PolicySpec(chunk_length=8, action_size=4, inputs=inputs, cameras=cameras)

    def infer(self, batch: Batch) -> Array:
        answers = []
        for state in batch.arrays[STATE]:
            apart = np.abs((self._states - state) / self._spread).sum(axis=1)
            answers.append(self._chunks[int(np.argmin(apart))])
        found = np.stack(answers).astype(np.float32)
        if self._mistake == "gripper answered":
            found[..., 3] *= -1
        if self._mistake == "unnormalised":
            found[..., :3] = 5 * found[..., :3] + 3
        if self._mistake == "answers scaled":
            found[..., :3] *= 0.1
        if self._mistake == "untrained":
            found = np.random.default_rng(0).uniform(-1, 1, found.shape).astype(np.float32)
        return found

    def close(self) -> None: ...


def chunks(actions: Array) -> Array:
    """The next 8 actions at each step, the last one repeated."""
    return np.stack([actions.take(range(i, i + 8), 0, mode="clip") for i in range(len(actions))])
