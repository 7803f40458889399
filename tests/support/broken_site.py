"""An env and a policy that break where `HOCKET_TEST_BROKEN` says so, as they do at a machine whose
GPU has died, or which lacks a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.data import Answer, Batch
from hocket.core.specs import PolicySpec
from support.seeding_env import Drawn

BROKEN = "HOCKET_TEST_BROKEN"


def _is(how: str) -> bool:
    return os.environ.get(BROKEN) == how


def make() -> Drawn:
    if _is("file"):
        Path("/nowhere/scene.xml").read_text()
    return Drawn("seeded", 0)


class Zeros:
    spec = PolicySpec(chunk_length=4, action_size=1, batch_invariant=True)

    def __init__(self) -> None:
        if _is("policy"):
            raise ImportError("libcudart.so.13: cannot open shared object file")

    def infer(self, batch: Batch) -> Answer:
        is_warm_up = "warm-up" in batch.rows[0].session
        if _is("gpu") and not is_warm_up:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return np.zeros((batch.size, 4, 1))

    def close(self) -> Any: ...
