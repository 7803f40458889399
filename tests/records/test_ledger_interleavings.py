"""Whatever the order of faults, retries, seals and interruptions: each trial counts once."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.core.data import Outcome
from hocket.core.events import Event
from hocket.records.ledger.view import LedgerView
from support.counted import check_counted
from support.synthetic_run import SyntheticRun, open_run, plan


class Interrupted(Exception):
    pass


@settings(max_examples=20)  # each opens several ledgers on disk
@given(
    seed=st.integers(0, 2**32),
    trials=st.integers(0, 12),
    lanes=st.integers(1, 6),
    fault_rate=st.sampled_from([0.0, 0.1, 0.5]),
    retries=st.integers(0, 3),
    pauses=st.lists(st.integers(1, 30), max_size=3),
)
def test_every_trial_counts_once_with_all_its_rows(
    seed: int, trials: int, lanes: int, fault_rate: float, retries: int, pauses: list[int]
) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as root:
        open_run(Path(root), resume=False, trials=plan(trials)).close()
        for allowed in [*pauses, 10**6]:
            with open_run(Path(root), resume=True) as ledger:
                ledger.sweep()
                left = allowed

                def emit(event: Event) -> None:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        raise Interrupted
                    ledger.on(event)

                run = SyntheticRun(
                    ledger.folder, rng, emit, lanes=lanes, fault_rate=fault_rate, retries=retries
                )
                try:
                    run.play(ledger.remaining(), ledger.next_attempts())
                except Interrupted:
                    continue
        assert set(check_counted(Path(root))) == set(plan(trials))
        with LedgerView.open(root) as view:
            failures = view.failures()
            errors = [e for e in view.episodes() if e.outcome is Outcome.ERROR]
        if not fault_rate:
            assert not failures
        lost = {(failure.trial, failure.attempt) for failure in failures}
        assert {(episode.trial, episode.attempt) for episode in errors} <= lost
