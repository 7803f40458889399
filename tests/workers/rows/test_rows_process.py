"""A batched simulator in a worker process does what it does in the engine's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hocket
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Ref, Trial
from hocket.workers.fleet import Fleet, FleetConfig
from hocket.workers.local.runtime import LocalRuntime
from hocket.workers.notices import LanesBegun, LanesExecuted, LanesUp
from support.row_toys import KEY, Echo

pytestmark = pytest.mark.heavy

ENV = "support.row_toys:RowToys"


def returns(runtime: str, **settings: Any) -> dict[str, tuple[float, int]]:
    report = hocket.evaluate(runtime=runtime, lanes=5, episodes=6, **settings)
    assert report.overall.errors == 0
    return {episode.trial.id: (episode.total_reward, episode.steps) for episode in report.episodes}


@pytest.mark.parametrize("history", [1, 3])
@pytest.mark.parametrize("way", ["mask", "snapshot"])
@pytest.mark.parametrize("apart", [False, True])
def test_results_are_those_of_the_same_rows_in_this_process(
    history: int, way: str, apart: bool
) -> None:
    settings: dict[str, Any] = {"env": ENV, "env_config": {"way": way, "apart": apart}}
    here = returns("inline", policy=Echo(history=history), **settings)
    assert here == returns("local", policy=Echo(history=history), **settings)
    assert len(here) == 12


def test_rows_of_simulators_that_see_other_shapes_keep_their_own() -> None:
    pytest.importorskip("mujoco")
    settings: dict[str, Any] = {"env": "mjx:all", "env_config": {"backend": "c"}, "max_steps": 40}
    here = returns("inline", policy="reference-mjx", **settings)
    assert here == returns("local", policy="reference-mjx", **settings)


def test_a_simulator_that_raises_costs_attempts_and_is_quoted() -> None:
    # The toy raises in the first simulator of every process, and each fault costs one.
    report = hocket.evaluate(
        env=ENV,
        policy=Echo(),
        runtime="local",
        lanes=3,
        episodes=4,
        env_config={"raise_at": 7},
        retries=1,
    )
    assert report.overall.errors == 8
    assert all("told to raise" in (episode.error or "") for episode in report.episodes)


@pytest.mark.parametrize("transport", ["shm", "inline"])
def test_observations_come_in_shared_memory_and_in_messages(transport: str) -> None:
    spec = WorkerSpec(suites={ENV: Ref(name=ENV)}, lanes=4, transport=transport)
    trials = [Trial(suite=ENV, task=task, seed=seed) for task in ("walk", "run") for seed in (0, 5)]
    with Fleet(LocalRuntime(), spec, FleetConfig(lanes=4)) as fleet:
        fleet.start()
        wait(fleet, LanesUp, 4)
        fleet.begin(
            [0, 1, 2, 3], [0] * 4, trials, [None] * 4, final_observation=True, record=[{}] * 4
        )
        wait(fleet, LanesBegun, 4)
        first = [fleet.arrays(lane)[KEY].copy() for lane in range(4)]
        assert len({row.tobytes() for row in first}) == 4
        fleet.execute([1, 3], [0, 0], [0, 0], [np.zeros((2, 3))] * 2)
        wait(fleet, LanesExecuted, 2)
        after = [fleet.arrays(lane)[KEY].copy() for lane in range(4)]
    assert [bool((a != b).any()) for a, b in zip(first, after, strict=True)] == [
        False,
        True,
        False,
        True,
    ]
    assert [round(float(row[-1]) * 100) for row in after] == [0, 2, 0, 2]


def wait(fleet: Fleet, kind: type[Any], lanes: int) -> None:
    """Until so many lanes have said that."""
    while lanes > 0:
        for notice in fleet.poll(30.0):
            assert isinstance(notice, kind), notice
            lanes -= len(notice.lanes)
