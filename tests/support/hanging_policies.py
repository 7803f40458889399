"""Policies that stop answering for good, in the ways in which real ones do."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hocket.core.data import Answer, Batch
from hocket.core.specs import PolicySpec

HANG_S = 600.0
"""Longer than any test waits; the threads are daemons, so that they outlive no process."""


class Hanging:
    """Answers with zeros, and hangs for good in its `after`-th batch of a run's own rows. With a
    `lock` it hangs as a deadlock does, and so does whoever closes it."""

    def __init__(self, after: int = 10, slow_s: float = 0.0, lock: bool = False) -> None:
        self.spec = PolicySpec(
            chunk_length=4, action_size=4, max_batch=4, cameras=(), batch_invariant=True
        )
        self.left = after
        self.slow_s = slow_s
        self._held = threading.Lock() if lock else None
        self.closed = False

    def infer(self, batch: Batch) -> Answer:
        is_warm_up = "warm-up" in batch.rows[0].session
        self.left -= not is_warm_up
        if self.left < 0 and not is_warm_up:
            if self._held is not None:
                self._held.acquire()
                self._held.acquire()
            time.sleep(HANG_S)
        time.sleep(self.slow_s)
        return np.zeros((batch.size, 4, 4))

    def close(self) -> None:
        if self._held is not None:
            self._held.acquire()
        self.closed = True


class Pair(Hanging):
    """Stands on two devices; the copy on `bad` hangs."""

    def replicas(self, devices: Sequence[str]) -> list[Hanging]:
        self.copies = {name: Hanging(3 if name == "bad" else 1 << 30, 0.005) for name in devices}
        return list(self.copies.values())


class HangsOnce(Hanging):
    """Hangs in its `after`-th batch, but in the first process only: a file remembers it."""

    def infer(self, batch: Batch) -> Answer:
        mark = Path(os.environ["HOCKET_TEST_HUNG"])
        if self.left == 0 and "warm-up" not in batch.rows[0].session:
            if mark.exists():
                self.left = 1 << 30
            else:
                mark.touch()
        return super().infer(batch)


class Stuck(Hanging):
    """Hangs at its first call, whoever asks, and would at its close."""

    def infer(self, batch: Batch) -> Answer:
        time.sleep(HANG_S)
        raise AssertionError

    def close(self) -> None:
        time.sleep(HANG_S)
