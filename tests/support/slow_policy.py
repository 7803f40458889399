"""A policy for servers in processes of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from hocket.core.data import Actions, Batch
from hocket.core.specs import PolicySpec


class Slow:
    """Takes half a second, and says so in a file when it begins."""

    spec = PolicySpec(chunk_length=1, action_size=1)

    def infer(self, batch: Batch) -> Actions:
        Path(os.environ["HOCKET_TEST_BEGAN"]).touch()
        time.sleep(0.5)
        return Actions(np.ones((batch.size, 1, 1)))

    def close(self) -> None:
        """Nothing is held."""
