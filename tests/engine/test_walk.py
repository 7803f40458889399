"""A chunk takes no longer a way through the parent: benchmarks/engine/walk.py counts it."""

from __future__ import annotations

import runpy
import select
from pathlib import Path
from statistics import median
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "engine" / "walk.py"
CALLS, HOPS, MODULES = 163, 80, 20
"""What one batch of two chunks may take: it took 161 calls and 77 hops when it was counted
last, which depends a little on when workers answer."""


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="without epoll (macOS) one module more")
def test_a_batch_of_two_chunks_takes_no_more_calls_than_it_did() -> None:
    count = runpy.run_path(str(SCRIPT))["walks"]
    # A machine that is busy may keep the two lanes apart for a whole run.
    walks: list[Any] = count() or count() or count()
    assert walks, "no batch of two followed another"
    assert median(walk.hops for walk in walks) <= HOPS
    assert median(len(walk.modules) for walk in walks) <= MODULES
    assert median(len(walk.calls) for walk in walks) <= CALLS
