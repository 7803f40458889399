"""Policies that need no weights: `random` and `zero`. They show what an env does by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hocket.core.data import Actions, Array, Batch, Row
from hocket.core.specs import ActionSpec, PolicySpec
from hocket.errors import ConfigError, PolicyError


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroConfig:
    chunk_length: int = 16
    """Actions in a chunk."""
    action_size: int | None = None
    """Numbers in an action; the env's own where not given."""

    def __post_init__(self) -> None:
        if self.chunk_length < 1 or (self.action_size is not None and self.action_size < 1):
            raise ConfigError("chunk_length and action_size must be at least 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomConfig(ZeroConfig):
    low: float | None = None
    """Lower bound; the env's own where not given, and -1 where that is infinite."""
    high: float | None = None
    """Upper bound; the env's own where not given, and 1 where that is infinite."""

    def __post_init__(self) -> None:
        # Without arguments, super() means a class that slots=True has replaced.
        ZeroConfig.__post_init__(self)
        bounds = (self.low, self.high)
        if any(bound is not None and not math.isfinite(bound) for bound in bounds):
            raise ConfigError(f"low and high must be finite, not {self.low} and {self.high}.")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ConfigError(f"low ({self.low}) is above high ({self.high}).")


class _Adapting:
    """A policy whose actions fit the env of each row."""

    _name: ClassVar[str]

    def __init__(self, argument: str, config: Any) -> None:
        if argument:
            raise ConfigError(f"{self._name!r} takes nothing after its name, not {argument!r}.")
        self._config = config
        self.spec = PolicySpec(
            chunk_length=config.chunk_length,
            action_size=config.action_size,
            inputs={},
            cameras=(),
            batch_invariant=True,
        )

    def close(self) -> None:
        """Nothing is held."""

    def _size(self, row: Row) -> int:
        if self.spec.action_size is not None:
            return self.spec.action_size
        if row.env is None:
            raise PolicyError(
                f"Policy {self._name!r} was not told how the env of task {row.trial.task!r} is "
                f"driven: set --policy.action-size, or Row.env."
            )
        return row.env.action.size


class ZeroPolicy(_Adapting):
    Config: ClassVar = ZeroConfig
    _name = "zero"

    def infer(self, batch: Batch) -> Actions:
        size = self._size(batch.rows[0])
        return Actions(np.zeros((batch.size, self._config.chunk_length, size), np.float32))


class RandomPolicy(_Adapting):
    """Uniform noise, keyed by trial and chunk alone. Discrete actions are drawn from all that the
    env has."""

    Config: ClassVar = RandomConfig
    _name = "random"

    def infer(self, batch: Batch) -> Actions:
        rows = [self._draw(row) for row in batch.rows]
        return Actions(np.stack(rows + rows[-1:] * batch.pad))

    def _draw(self, row: Row) -> Array:
        length, size = self._config.chunk_length, self._size(row)
        driven = None if row.env is None else row.env.action
        low, high = self._bounds(driven, size)
        rng = np.random.default_rng(row.noise_seed)
        if driven is not None and driven.kind == "discrete":
            return rng.integers(low.astype(int), high.astype(int) + 1, (length, size)).astype(float)
        return rng.uniform(low, high, (length, size))

    def _bounds(self, driven: ActionSpec | None, size: int) -> tuple[Array, Array]:
        low, high = np.full(size, -1.0), np.full(size, 1.0)
        if driven is not None and driven.size == size:
            low = np.where(np.isfinite(driven.low), driven.low, low).ravel()
            high = np.where(np.isfinite(driven.high), driven.high, high).ravel()
        if self._config.low is not None:
            low = np.full(size, self._config.low)
        if self._config.high is not None:
            high = np.full(size, self._config.high)
        # One bound from the user and one from the env may cross; the smaller is then both.
        return np.minimum(low, high), high
