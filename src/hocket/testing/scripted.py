"""A policy without weights whose answers reveal mix-ups, and which can misbehave on request."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hocket.core.data import Answer, Array, Batch
from hocket.core.specs import EnvSpec, PolicySpec
from hocket.errors import ConfigError, PolicyError

_MIX = np.uint64(0x9E3779B97F4A7C15)
_STEP = np.uint64(0xBF58476D1CE4E5B9)
_TURN = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedConfig:
    """A scripted policy's settings."""

    chunk_length: int = 16
    action_size: int | None = None
    """None adapts to the env."""
    cameras: tuple[str, ...] | None = ()
    """Image keys to render for it; None means all that the env has."""
    history: int = 1
    max_batch: int = 64
    concurrency: int = 1
    batch_invariant: bool = True
    replan: int | None = None
    latency_s: float = 0.0
    """Seconds that each infer sleeps ..."""
    latency_per_row_s: float = 0.0
    """... and seconds more for each row."""
    slow_first_call_s: float = 0.0
    """Seconds more for the first infer."""
    raise_on_task: str = ""
    """Raise for batches with a row of this task or trial."""
    nan_on_task: str = ""
    """Answer NaN for rows of this task or trial."""
    wrong_shape: Literal["", "B", "T", "A"] = ""
    """Answer with one too many of these."""
    wrong_dtype: str = ""
    """Answer in this dtype: `complex128`, `object` ..."""


class ScriptedPolicy:
    """Answers with numbers computed from the row's observation and noise seed alone.

    Every bit of the (non-image) observation and of the seed moves every action, so two episodes
    with equal returns were asked for in the same way. Actions lie within the bounds of the row's
    env, else within [-1, 1]. `batch_sizes` lists what it was asked.
    """

    Config = ScriptedConfig

    def __init__(self, argument: str = "", config: ScriptedConfig | None = None) -> None:
        if argument:
            raise ConfigError(f"The scripted policy takes settings only, not {argument!r}.")
        config = config or ScriptedConfig()
        if config.chunk_length < 1:
            raise ConfigError(f"chunk_length must be 1 or more, not {config.chunk_length}.")
        self.config = config
        self.spec = PolicySpec(
            chunk_length=config.chunk_length,
            action_size=config.action_size,
            cameras=config.cameras,
            history=config.history,
            max_batch=config.max_batch,
            concurrency=config.concurrency,
            batch_invariant=config.batch_invariant,
            replan=config.replan,
        )
        self.batch_sizes: list[int] = []

    def infer(self, batch: Batch) -> Answer:
        config = self.config
        seconds = config.latency_s + config.latency_per_row_s * batch.size
        if not self.batch_sizes:
            seconds += config.slow_first_call_s
        self.batch_sizes.append(batch.size)
        if seconds:
            time.sleep(seconds)
        for row in batch.rows:
            if config.raise_on_task and config.raise_on_task in (row.trial.task, row.trial.id):
                raise RuntimeError(f"The scripted policy was told to raise for {row.trial.id}.")
        return self._misbehave(batch, self._values(batch))

    def close(self) -> None:
        """Nothing is held."""

    def _values(self, batch: Batch) -> Array:
        bounds = [None if row.env is None else _bounds(row.env) for row in batch.rows]
        size = self.config.action_size
        if size is None:
            if bounds[0] is None:
                raise PolicyError(
                    "The scripted policy does not know how many numbers an action has. Set its "
                    "action_size, or Row.env."
                )
            size = len(bounds[0][0])
        unit = _uniform(_keys(batch), self.config.chunk_length, size)
        for i, bound in enumerate(bounds):
            if bound is not None and len(bound[0]) == size:
                unit[i] = bound[0] + unit[i] * (bound[1] - bound[0])
            else:
                unit[i] = 2.0 * unit[i] - 1.0
        return unit

    def _misbehave(self, batch: Batch, values: Array) -> Array:
        config = self.config
        if config.nan_on_task:
            for i, row in enumerate(batch.rows):
                if config.nan_on_task in (row.trial.task, row.trial.id):
                    values[i, -1, -1] = np.nan
        if config.wrong_shape:
            axis = "BTA".index(config.wrong_shape)
            values = np.concatenate([values, values.take([0], axis=axis)], axis=axis)
        return values.astype(config.wrong_dtype) if config.wrong_dtype else values


def _bounds(env: EnvSpec) -> tuple[Array, Array]:
    low = np.where(np.isfinite(env.action.low), env.action.low, -1.0).ravel()
    high = np.where(np.isfinite(env.action.high), env.action.high, 1.0).ravel()
    return low, high


def _keys(batch: Batch) -> Array:
    """A 64-bit number for each row. Whole-number arithmetic wraps and has no rounding, so the
    rest of the batch cannot matter."""
    seeds = [row.noise_seed for row in batch.rows]
    keys = np.array(seeds + seeds[-1:] * batch.pad, dtype=np.uint64) * _TURN
    images = [key for key, array in batch.arrays.items() if array.dtype == np.uint8]
    read = sorted(set(batch.arrays) - set(images)) or sorted(images)
    for key in read:
        array = batch.arrays[key].reshape(batch.size, -1)
        # Adding zero makes -0.0 and 0.0 one number.
        bits = np.ascontiguousarray(array.astype(np.float64) + 0.0).view(np.uint64)
        weights = _scramble(np.arange(1, bits.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)
        keys = _scramble(keys + (_scramble(bits) * weights).sum(axis=1, dtype=np.uint64))
    return keys


def _uniform(keys: Array, length: int, size: int) -> Array:
    """Numbers in [0, 1), `[B, T, A]`, from a key for each row."""
    offsets = np.arange(1, length * size + 1, dtype=np.uint64) * _MIX
    bits = _scramble(keys[:, None] + offsets[None, :])
    unit: Array = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return unit.reshape(len(keys), length, size)


def _scramble(bits: Array) -> Array:
    """splitmix64's finaliser: each bit of the input moves about half of the output's."""
    bits = (bits ^ (bits >> np.uint64(30))) * _STEP
    bits = (bits ^ (bits >> np.uint64(27))) * _TURN
    mixed: Array = bits ^ (bits >> np.uint64(31))
    return mixed
