"""hocket's client in tests: what it asks, and policies that show whose rows they answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hocket.adapters.policies.openpi.policy import OpenPI, OpenPIConfig
from hocket.core.data import Actions, Batch, Observation, Row, Trial, noise_seed
from hocket.core.specs import ActionSpec, ArraySpec, EnvSpec, PolicySpec, TaskInfo
from support.running_server import WAIT_S, Running

Connect = Callable[..., OpenPI]


def open_client(*servers: Running, **settings: Any) -> OpenPI:
    settings = {"ready_timeout_s": WAIT_S, "timeout_s": WAIT_S, **settings}
    return OpenPI(",".join(server.address for server in servers), OpenPIConfig(**settings))


def make_row(value: int, chunk: int = 0, env: EnvSpec | None = None) -> Row:
    trial = Trial(suite="s", task="push", seed=value, repeat=1)
    return Row(
        trial=trial,
        attempt=2,
        chunk=chunk,
        noise_seed=noise_seed(trial, chunk),
        prompt=f"go {value}",
        session=f"session {value}",
        env=env,
    )


def make_batch(*values: int, chunk: int = 0, pad: int = 0, env: EnvSpec | None = None) -> Batch:
    state = np.array([*values, *values[-1:] * pad], np.float32)[:, None]
    image = np.zeros((len(state), 8, 8, 3), np.uint8)
    return Batch(
        arrays={"observation/state": state, "observation/image": image},
        rows=tuple(make_row(value, chunk, env) for value in values),
        pad=pad,
    )


def env_spec(actions: int, bound: float = 0.5) -> EnvSpec:
    high = np.full(actions, bound)
    return EnvSpec(
        task=TaskInfo(name="push"),
        action=ActionSpec(
            size=actions, kind="box", shape=(actions,), dtype="<f4", low=-high, high=high
        ),
        observations={"observation/state": ArraySpec(shape=(1,), dtype="<f4")},
        cameras=(),
        abilities=(),
    )


class RowWise:
    """Answers each row with `function(observation, row)`, `[T, A]`."""

    def __init__(
        self, function: Callable[[Observation, Row], Any], *, latency_s: float = 0.0, **spec: Any
    ) -> None:
        self.spec = PolicySpec(cameras=(), batch_invariant=True, **spec)
        self.batch_sizes: list[int] = []
        self._function = function
        self._latency_s = latency_s

    def infer(self, batch: Batch) -> Any:
        self.batch_sizes.append(batch.size)
        time.sleep(self._latency_s)
        chunks = [
            self._function({key: array[i] for key, array in batch.arrays.items()}, row)
            for i, row in enumerate(batch.rows)
        ]
        return np.stack(chunks + chunks[-1:] * batch.pad)

    def close(self) -> None:
        """Nothing is held."""


class Stateful:
    """Counts the chunks of each session."""

    spec = PolicySpec(chunk_length=1, action_size=1, max_batch=8)

    def __init__(self) -> None:
        self.live: dict[str, int] = {}
        self.ended = threading.Semaphore(0)

    def begin_session(self, row: Row) -> None:
        self.live[row.session] = 0

    def end_session(self, session: str) -> None:
        del self.live[session]
        self.ended.release()

    def infer(self, batch: Batch) -> Actions:
        for row in batch.rows:
            self.live[row.session] += 1
        counts = [[[float(self.live[row.session])]] for row in batch.rows]
        return Actions(np.array(counts))

    def close(self) -> None:
        """Nothing is held."""


class Clipping:
    """Answers with the highest action of the env that it was told of, prepared for each."""

    spec = PolicySpec(chunk_length=1, max_batch=8, batch_invariant=True)

    def __init__(self) -> None:
        self.highest: dict[EnvSpec, np.ndarray[Any, Any]] = {}

    def bind(self, spec: EnvSpec) -> None:
        self.highest[spec] = spec.action.high

    def infer(self, batch: Batch) -> Actions:
        rows = [self.highest[row.env][None] for row in batch.rows if row.env is not None]
        return Actions(np.stack(rows + rows[-1:] * batch.pad))

    def close(self) -> None:
        """Nothing is held."""
