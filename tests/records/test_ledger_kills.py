"""`kill -9` at any moment, then resume: nothing is lost, and nothing is counted twice."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from hocket.core.data import Trial
from hocket.records.chunks import load_chunks
from hocket.records.step_rows import load_steps
from support import synthetic_run
from support.counted import check_counted
from support.synthetic_run import open_run, plan

TRIALS = 240


def kill_at_random(root: Path, rng: random.Random) -> bool:
    """Go on with the run in another process and kill it; false if it ended before."""
    child = subprocess.Popen(
        [sys.executable, synthetic_run.__file__, str(root), str(rng.randrange(10**6))],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    with child.stdout:
        said = child.stdout.read(rng.randint(1, 70))
        child.kill()
        child.wait(timeout=100)
    return b"!" not in said and child.returncode == -9


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [2, pytest.param(25, marks=pytest.mark.slow)])
def test_every_trial_is_counted_once_after_many_kills(tmp_path: Path, kills: int) -> None:
    root = tmp_path / "run"
    open_run(root, resume=False, trials=plan(TRIALS)).close()
    rng = random.Random(11)
    before: dict[Trial, int] = {}
    for _ in range(kills):
        assert kill_at_random(root, rng), "the run ended before it was killed: plan more trials"
        counted = check_counted(root)
        assert before.items() <= counted.items(), "a finished episode was lost or changed"
        before = counted
    assert 0 < len(before) < TRIALS

    subprocess.run(
        [sys.executable, synthetic_run.__file__, str(root), "0"], check=True, timeout=100
    )
    counted = check_counted(root)
    assert set(counted) == set(plan(TRIALS))
    assert max(counted.values()) > 0, "no attempt was ever repeated"
    for table, load in (("steps", load_steps), ("chunks", load_chunks)):
        seen_directly = ds.dataset(root / table, format="parquet").to_table()
        assert seen_directly.num_rows == load(root).num_rows
        pairs = set(zip(*(seen_directly[c].to_pylist() for c in ("trial", "attempt")), strict=True))
        assert pairs <= {(trial.id, attempt) for trial, attempt in counted.items()}


def test_finished_run_leaves_one_segment_of_each_table_and_no_waste(tmp_path: Path) -> None:
    root = tmp_path / "run"
    open_run(root, resume=False, trials=plan(60)).close()
    for seed in ("1", "2"):  # the second finds nothing to do
        subprocess.run(
            [sys.executable, synthetic_run.__file__, str(root), seed], check=True, timeout=100
        )
    for table in ("chunks", "steps", "states"):
        assert len(list((root / table).iterdir())) == 1
    assert not list(root.rglob("*.rows"))
    assert not list(root.rglob("*.tmp"))
    assert pc.count_distinct(load_steps(root)["trial"]).as_py() == 60
    with open_run(root, resume=True) as ledger:
        assert ledger.remaining() == []
        # Failed attempts leave nothing here, so that there is nothing to sweep.
        assert ledger.sweep() == []
