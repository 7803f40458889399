"""A policy that answers every row with what that row shows."""

from __future__ import annotations

import numpy as np

from hocket.core.data import Actions, Batch
from hocket.core.specs import PolicySpec


class Echo:
    spec = PolicySpec(chunk_length=2, action_size=1, max_batch=16, batch_invariant=True)

    def infer(self, batch: Batch) -> Actions:
        values = batch.arrays["observation/state"].reshape(batch.size, -1)[:, :1]
        return Actions(np.repeat(values[:, None], 2, axis=1).astype(np.float64))

    def close(self) -> None:
        """Nothing is held."""
