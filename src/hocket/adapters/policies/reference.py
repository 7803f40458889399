"""Policies for MetaWorld: its scripted experts (`metaworld-expert`), and `reference`, their clone.

`reference` is a small chunk policy for the ten tasks of MT10, in numpy alone. It clones the experts
from the state, with one small network for each task; the recipe is `examples/train_reference.py`.
Its answers are the same to the bit whatever the batch: everything done on whole batches is exact
for each element (sums, products, clipping), and each row's matrix products are computed alone, in
one fixed order, without BLAS.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, ClassVar

import numpy as np

from hocket.core.data import Actions, Array, Batch
from hocket.core.plugins import NoSettings, did_you_mean
from hocket.core.specs import ArraySpec, EnvSpec, PolicySpec
from hocket.errors import ConfigError, PolicyError, SpecMismatchError

STATE_KEY = "observation/state"
CHUNK_LENGTH = 16
ACTION_SIZE = 4


def _spec(chunk_length: int) -> PolicySpec:
    return PolicySpec(
        chunk_length=chunk_length,
        action_size=ACTION_SIZE,
        inputs={STATE_KEY: ArraySpec(shape=(39,), dtype="float64")},
        cameras=(),
        control_rate=80.0,
        batch_invariant=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceConfig:
    weights: str = ""
    """A file written by examples/train_reference.py; the bundled weights if empty."""


class Reference:
    """The clone of the experts: a state of an MT10 task in, 16 actions out."""

    Config: ClassVar = ReferenceConfig

    def __init__(self, argument: str, config: ReferenceConfig) -> None:
        if argument:
            raise ConfigError(
                f"'reference' takes nothing after its name, not {argument!r}. Other weights are "
                f"given by --policy.weights."
            )
        bundled = resources.files("hocket.adapters.policies") / "weights" / "reference.npz"
        self.files = (config.weights or str(bundled),)
        """What its answers depend on."""
        self._tasks = _load(self.files[0])
        self.spec = _spec(CHUNK_LENGTH)

    def bind(self, spec: EnvSpec) -> None:
        name = spec.task.name
        if name not in self._tasks:
            raise SpecMismatchError(
                f"Policy 'reference' knows the tasks of MT10 only, not {name!r}."
                f"{did_you_mean(name, self._tasks)} Known: {', '.join(self._tasks)}. Try "
                f"--env metaworld:mt10, or --policy metaworld-expert for any task of MetaWorld."
            )

    def infer(self, batch: Batch) -> Actions:
        values = np.empty((batch.size, CHUNK_LENGTH, ACTION_SIZE), np.float32)
        inputs = features(batch.arrays[STATE_KEY])
        for i in range(batch.size):
            name = batch.rows[min(i, len(batch.rows) - 1)].trial.task
            network = self._tasks.get(name)
            if network is None:
                raise PolicyError(f"Policy 'reference' has no network for the task {name!r}.")
            values[i] = network.answer(inputs[i])
        return Actions(values)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """One task's network: layers of `[out, in]` with rectifiers between them."""

    mean: Array
    scale: Array
    layers: tuple[tuple[Array, Array], ...]

    def answer(self, row: Array) -> Array:
        """Actions `[T, A]` for one row of features."""
        hidden = (row - self.mean) / self.scale
        last = len(self.layers) - 1
        for depth, (weight, bias) in enumerate(self.layers):
            # einsum sums in its own fixed order; BLAS would choose one by shape and threads.
            hidden = np.einsum("oi,i->o", weight, hidden) + bias
            if depth < last:
                hidden = np.maximum(hidden, 0)
        return np.clip(hidden, -1, 1).reshape(CHUNK_LENGTH, ACTION_SIZE)


def features(states: Array) -> Array:
    """States `[B, 39]` as the networks see them, `[B, F]` float32.

    Experts decide by distances of centimetres between hand, object and goal: those are given as
    they are, and once more clipped near zero, where they matter. Only operations that are exact
    for each element may be used here.
    """
    states = np.asarray(states, np.float64)
    now, before, goal = states[:, :18], states[:, 18:36], states[:, 36:39]
    hand, first, second = now[:, 0:3], now[:, 4:7], now[:, 11:14]
    motion = (now[:, :7] - before[:, :7]) * 100.0
    gaps = np.concatenate((first - hand, goal - hand, goal - first, second - hand), axis=1)
    flat = np.stack(
        [np.sqrt(gaps[:, i] ** 2 + gaps[:, i + 1] ** 2) for i in range(0, 12, 3)], axis=1
    )
    gaps = np.concatenate((gaps, flat), axis=1)
    near, nearer = np.clip(gaps / 0.1, -1, 1), np.clip(gaps / 0.025, -1, 1)
    return np.concatenate((now, goal, motion, gaps, near, nearer), axis=1).astype(np.float32)


def pack(networks: Mapping[str, Network]) -> dict[str, Array]:
    """Networks as the arrays of a weights file; matrices in half precision."""
    arrays: dict[str, Array] = {"tasks": np.array(list(networks))}
    every = list(networks.values())
    arrays["mean"] = np.stack([net.mean for net in every]).astype(np.float32)
    arrays["scale"] = np.stack([net.scale for net in every]).astype(np.float32)
    for depth, layers in enumerate(zip(*(net.layers for net in every), strict=True)):
        weights, biases = zip(*layers, strict=True)
        arrays[f"weight{depth}"] = np.stack(weights).astype(np.float16)
        arrays[f"bias{depth}"] = np.stack(biases).astype(np.float32)
    return arrays


def unpack(arrays: Mapping[str, Array]) -> dict[str, Network]:
    """Networks by task from the arrays of a weights file."""
    depth = sum(key.startswith("weight") for key in arrays)
    return {
        str(name): Network(
            mean=arrays["mean"][i],
            scale=arrays["scale"][i],
            layers=tuple(
                (arrays[f"weight{d}"][i].astype(np.float32), arrays[f"bias{d}"][i])
                for d in range(depth)
            ),
        )
        for i, name in enumerate(arrays["tasks"])
    }


def _load(source: str) -> dict[str, Network]:
    try:
        with open(source, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return unpack(dict(arrays))
    except (OSError, KeyError, ValueError) as exc:
        raise ConfigError(
            f"The weights of 'reference' cannot be read from {source}: {exc}"
        ) from exc


class MetaWorldExpert:
    """What the task's expert would do now. Experts see the goal: they fail where it is hidden."""

    Config: ClassVar = NoSettings

    def __init__(self, argument: str, config: object) -> None:
        if argument:
            raise ConfigError(f"'metaworld-expert' takes nothing after its name, not {argument!r}.")
        from metaworld.policies import ENV_POLICY_MAP

        # Experts warn that they ask for more than the env allows; clipping is what they expect.
        warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high")
        self._experts: dict[str, Any] = {name: kind() for name, kind in ENV_POLICY_MAP.items()}
        self.spec = _spec(1)

    def bind(self, spec: EnvSpec) -> None:
        if spec.task.name not in self._experts:
            near = did_you_mean(spec.task.name, self._experts)
            raise SpecMismatchError(
                f"MetaWorld has no expert for the task {spec.task.name!r}.{near}"
            )

    def infer(self, batch: Batch) -> Actions:
        states = np.asarray(batch.arrays[STATE_KEY], np.float64)
        values = np.zeros((batch.size, 1, 4), np.float32)
        for i, row in enumerate(batch.rows):
            expert = self._experts.get(row.trial.task)
            if expert is None:
                raise PolicyError(f"MetaWorld has no expert for the task {row.trial.task!r}.")
            values[i, 0] = np.clip(expert.get_action(states[i]), -1, 1)
        return Actions(values)

    def close(self) -> None:
        """Nothing is held."""
