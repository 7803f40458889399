"""A chunk takes no longer a way through the parent: benchmarks/engine/walk.py counts it."""

from __future__ import annotations

import runpy
from pathlib import Path
from statistics import median
from typing import Any

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "engine" / "walk.py"
CALLS, HOPS, MODULES = 201, 79, 20
"""What one batch of two chunks took when it was counted last."""


def test_a_batch_of_two_chunks_takes_no_more_calls_than_it_did() -> None:
    walks: list[Any] = runpy.run_path(str(SCRIPT))["walks"]()
    assert walks, "no batch of two followed another"
    assert median(walk.hops for walk in walks) <= HOPS
    assert median(len(walk.modules) for walk in walks) <= MODULES
    assert median(len(walk.calls) for walk in walks) <= CALLS
