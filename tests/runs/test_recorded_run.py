"""Real workers, a real engine: what the ledger counts is what the tables hold."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hocket.core import plugins
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Episode, Outcome, Ref, Trial
from hocket.engine.batches import BatchConfig, Batches
from hocket.engine.chunk_rules import make_rule
from hocket.engine.config import EngineConfig
from hocket.engine.inferring.inference import Inference
from hocket.engine.loop import Engine
from hocket.engine.scheduling.scheduler import Scheduler, SchedulerConfig
from hocket.engine.trials import TrialQueue
from hocket.records.chunks import ChunkRows, load_chunks
from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.writer import LedgerConfig
from hocket.records.step_rows import KeptStates, StateRows, StepRows, load_steps
from hocket.workers.fleet import Fleet, FleetConfig


def run(ledger: Ledger, env_config: dict[str, Any], *, lanes: int = 3, retries: int = 2) -> bool:
    """Go on with a run of the toy suite."""
    policy = plugins.build("policies", "scripted")
    inference = Inference([policy], ["scripted"])
    worker = WorkerSpec(
        suites={"toy": Ref(name="toy", config=env_config)},
        sinks=(Ref(name="steps"), Ref(name="states")),
        folder=str(ledger.folder.root),
    )
    runtime = plugins.build("runtimes", "local")
    with Fleet(runtime, worker, FleetConfig(lanes=lanes)) as fleet, contextlib.closing(inference):
        scheduler = Scheduler(SchedulerConfig(cores=1, max_batch=8, concurrency=1))
        engine = Engine(
            fleet=fleet,
            batches=Batches(policy, inference, scheduler, BatchConfig()),
            make_rule=make_rule(None, None),
            config=EngineConfig(retries=retries),
            readers=(ledger,),
        )
        return engine.run(
            TrialQueue(ledger.remaining()),
            planned=ledger.trials(),
            done=ledger.episodes(),
            attempts=ledger.next_attempts(),
        )


def create(root: Path, trials: Sequence[Trial]) -> Ledger:
    ledger = Ledger.create(root, trials, {}, config=LedgerConfig(group_s=0.02))
    ledger.attach(ChunkRows(leg=ledger.leg))
    ledger.attach(StepRows(root))
    ledger.attach(StateRows(root))
    return ledger


def plan(count: int) -> list[Trial]:
    return [Trial(suite="toy", task="count", seed=seed) for seed in range(count)]


def check(root: Path, episode: Episode) -> None:
    """An episode's rows say what its own row says."""
    steps = load_steps(root, [episode.trial]).to_pylist()
    chunks = load_chunks(root, [episode.trial]).to_pylist()
    assert {row["attempt"] for row in steps + chunks} == {episode.attempt}
    assert [row["step"] for row in steps] == list(range(episode.steps + 1))
    assert sum(row["reward"] for row in steps) == pytest.approx(episode.total_reward)
    assert steps[-1]["terminated"] == episode.terminated
    assert steps[-1]["truncated"] == episode.truncated
    assert [row["chunk"] for row in chunks] == list(range(episode.chunks))
    assert sum(row["steps"] for row in chunks) == episode.steps
    for row in chunks:
        times = [row[name] for name in ("requested", "batched", "inferred", "delivered")]
        assert times == sorted(times)
        assert row["executed"] > row["delivered"]
    assert episode.files == ()
    states = KeptStates(root).load(episode)
    assert states is not None
    assert len(states) == episode.steps + 1


def test_counted_episodes_have_their_steps_and_chunks(tmp_path: Path) -> None:
    with create(tmp_path, plan(7)) as ledger:
        assert run(ledger, {})
        episodes = ledger.episodes()
        assert [episode.trial for episode in episodes] == plan(7)
        assert ledger.sweep() == []
    for episode in episodes:
        check(tmp_path, episode)
    assert not list(tmp_path.rglob("*.rows"))


def test_killed_worker_costs_one_attempt_and_leaves_no_rows_of_it(tmp_path: Path) -> None:
    faults = {"kill_at": 9, "fault_seed": 2, "once_file": str(tmp_path / "killed-once")}
    root = tmp_path / "run"
    with create(root, plan(4)) as ledger:
        assert run(ledger, faults)
        episodes = ledger.episodes()
        (failure,) = ledger.failures()
    assert [episode.attempt for episode in episodes] == [0, 0, 1, 0]
    assert (failure.trial.seed, failure.attempt) == (2, 0)
    for episode in episodes:
        check(root, episode)


def test_trial_that_always_fails_is_an_error_with_the_chunks_it_had(tmp_path: Path) -> None:
    with create(tmp_path, plan(3)) as ledger:
        assert run(ledger, {"raise_at": 18, "fault_seed": 1}, retries=1)
        good, bad, other = ledger.episodes()
        assert len(ledger.failures()) == 2
    assert bad.outcome is Outcome.ERROR
    assert bad.attempt == 1
    for episode in (good, other):
        check(tmp_path, episode)
    assert load_steps(tmp_path, [bad.trial]).num_rows == 0
    chunks = load_chunks(tmp_path, [bad.trial]).to_pylist()
    assert {row["attempt"] for row in chunks} == {1}
    assert chunks[-1]["executed"] is None
