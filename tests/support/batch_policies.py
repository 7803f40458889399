"""Policies whose answers depend on more than the row: on its batch, or on what came before."""

from __future__ import annotations

import time

import numpy as np

from hocket.core.data import Answer, Array, Batch, Row
from hocket.core.specs import PolicySpec


class Positional:
    """Answers with the state, and moves its last bits by the row's index in the batch, as matrix
    products do on many a machine. `shift` 0 leaves the bits alone."""

    def __init__(self, *, shift: int = 1, max_batch: int = 64, **spec: bool) -> None:
        self.spec = PolicySpec(chunk_length=4, action_size=4, max_batch=max_batch, **spec)  # type: ignore[arg-type]
        self.shift = shift
        self.sizes: list[int] = []

    def infer(self, batch: Batch) -> Answer:
        self.sizes.append(batch.size)
        state: Array = batch.arrays["observation/state"]
        values = np.repeat(np.tanh(state[:, None, :4]).astype(np.float64), 4, axis=1)
        bits = values.view(np.int64) + self.shift * np.arange(batch.size)[:, None, None]
        return bits.view(np.float64)

    def close(self) -> None: ...


class Counting:
    """Keeps for each attempt how often it was asked, and answers with that. It raises for batches
    with a row of the trial `bad` from its third chunk on, the first time for one that holds other
    rows too, and always after every row's state has moved on, as a model does that fails late."""

    def __init__(self, bad: str = "", *, raises: int = 1 << 30) -> None:
        self.spec = PolicySpec(chunk_length=4, action_size=3, max_batch=8)
        self.bad = bad
        self.raises = raises
        """Times that it raises before it no longer does."""
        self.asked: dict[str, int] = {}
        self.batches: list[tuple[str, ...]] = []
        """The trials of each batch."""
        self.raised: list[int] = []
        """Indices of the batches for which it raised."""

    def begin_session(self, row: Row) -> None:
        self.asked[row.session] = 0

    def end_session(self, session: str) -> None:
        self.asked.pop(session, None)

    def infer(self, batch: Batch) -> Answer:
        self.batches.append(tuple(row.trial.id for row in batch.rows))
        for row in batch.rows:
            self.asked[row.session] += 1
        time.sleep(0.02)  # others come meanwhile, so that batches hold several rows
        is_bad = any(row.trial.id == self.bad and row.chunk >= 2 for row in batch.rows)
        if is_bad and (self.raised or len(batch.rows) > 1) and self.raises > 0:
            self.raises -= 1
            self.raised.append(len(self.batches) - 1)
            raise RuntimeError(f"The policy cannot answer {self.bad}.")
        counts = np.array([self.asked[row.session] for row in batch.rows], np.float64)
        return np.tile(counts[:, None, None] / 64, (1, 4, 3))

    def close(self) -> None: ...
