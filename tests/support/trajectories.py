"""Makes stretches of random lengths for the tests of training."""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket.core.data import Trial
from hocket.train.algorithms.stretches import Stretch

LENGTH, SIZE = 4, 2


def stretch(
    rng: np.random.Generator,
    *,
    chunks: int = 3,
    seed: int = 0,
    repeat: int = 0,
    first: int = 0,
    version: int = 0,
    terminated: bool = True,
    truncated: bool = False,
    **changes: Any,
) -> Stretch:
    """A stretch of random numbers, ended as told."""
    executed = rng.integers(1, LENGTH + 1, chunks)
    mask = np.arange(LENGTH) < executed[:, None]
    values: dict[str, Any] = {
        "trial": Trial(suite="toy", task="count", seed=seed, repeat=repeat),
        "attempt": 0,
        "lane": 0,
        "observation": {
            "observation/state": rng.normal(size=(chunks, 3)).astype(np.float32),
            "task": np.zeros(chunks, np.int64),
        },
        "actions": rng.normal(size=(chunks, LENGTH, SIZE)).astype(np.float32),
        "executed": executed,
        "rewards": rng.normal(size=(chunks, LENGTH)) * mask,
        "log_prob": rng.normal(size=(chunks, LENGTH)).astype(np.float32) - 2,
        "value": rng.normal(size=chunks).astype(np.float32),
        "version": np.full(chunks, version),
        "chunk": np.arange(first, first + chunks),
        "terminated": terminated,
        "truncated": truncated,
        "final": None
        if terminated
        else {
            "observation/state": rng.normal(size=3).astype(np.float32),
            "task": np.int64(0).reshape(()),
        },
    }
    return Stretch(**{**values, **changes})
