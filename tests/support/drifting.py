"""A policy whose noise alone decides which way it goes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import hocket
from hocket.core.contracts.policy import NOISE
from hocket.core.specs import ArraySpec

CHUNK, WIDTH = 4, 2


class Drifting:
    """Goes where its noise points; `told` is the last noise that it flowed from."""

    spec = hocket.PolicySpec(
        chunk_length=CHUNK,
        action_size=1,
        inputs={"observation/state": ArraySpec(shape=(2,), dtype="<f4")},
        noise=(CHUNK, WIDTH),
    )
    told: ClassVar[Any] = None

    def infer(self, batch: Any) -> Any:
        noise = batch.arrays.get(NOISE)
        if noise is None:
            rows = [*batch.rows, *[batch.rows[-1]] * batch.pad]
            seeds = [np.random.default_rng(row.noise_seed) for row in rows]
            noise = np.stack([rng.standard_normal((CHUNK, WIDTH)) for rng in seeds])
        Drifting.told = np.array(noise)
        return np.sign(noise[:, :1, :1]).repeat(CHUNK, 1).astype(np.float32)

    def close(self) -> None: ...
