from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.core.specs import ActionSpec, EnvSpec, PolicySpec, TaskInfo
from hocket.errors import PolicyHungError, SpecMismatchError, WorkerFailed
from hocket.runs import probe as probe_module
from hocket.runs.probe import LaneCount, Probe
from hocket.system import limits
from support.hanging_policies import Stuck

GIB = 1 << 30
LIBERO_FIRST_LOOK, LIBERO_LARGEST = 0.74 * GIB, 1.03 * GIB
"""A worker after its first chunk, and the largest ever seen (libero:10, with hard resets)."""


class Policy:
    spec = PolicySpec(chunk_length=16)


def seen(memory: float | None) -> Probe:
    """A slow env and a fast policy: more lanes always pay."""
    side = np.ones(7, np.float32)
    action = ActionSpec(size=7, kind="box", shape=(7,), dtype="<f4", low=-side, high=side)
    spec = EnvSpec(
        task=TaskInfo(name="t"), action=action, observations={}, cameras=(), abilities=()
    )
    whole = None if memory is None else int(memory)
    latencies = {1: 0.01, 16: 0.02}
    return Probe(spec=spec, execute_s=0.4, latencies=latencies, memory=whole, chunk_length=1)


def lanes(memory: float | None, *, of: float, cores: int = 64) -> int:
    return seen(memory).lanes(cores=cores, memory=int(of), trials=500, policy=Policy()).lanes


def test_lanes_of_libero_fit_into_memory_even_when_they_have_grown():
    chosen = lanes(LIBERO_FIRST_LOOK, of=24 * GIB)
    assert 20 <= chosen <= 26
    assert chosen * LIBERO_FIRST_LOOK <= 0.8 * 24 * GIB
    # What several workers share, a tenth of each, is resident once.
    assert chosen * 0.9 * LIBERO_LARGEST <= 24 * GIB


def test_where_memory_is_no_limit_cores_are():
    assert lanes(LIBERO_FIRST_LOOK, of=24 * GIB, cores=2) < 10
    assert lanes(None, of=24 * GIB) > lanes(LIBERO_FIRST_LOOK, of=24 * GIB)


@pytest.mark.parametrize("of", [0.1, 0.5, 1.0])
def test_a_worker_that_hardly_fits_runs_alone(of):
    assert lanes(LIBERO_FIRST_LOOK, of=of * GIB) == 1


def looked_at(rng, policy_s: float, execute_s: float) -> Probe:
    """What another look at the same env and policy shows: times differ by a tenth or so."""
    return dataclasses.replace(
        seen(None),
        execute_s=execute_s * rng.uniform(0.9, 1.2),
        latencies={1: policy_s * rng.uniform(0.9, 1.2), 16: 2 * policy_s * rng.uniform(0.9, 1.2)},
    )


def test_looks_at_one_env_choose_numbers_of_lanes_that_are_alike():
    rng = np.random.default_rng()
    for _ in range(20):
        policy_s, execute_s = 10 ** rng.uniform(-3, -1), 10 ** rng.uniform(-4, 0)
        chosen = [
            looked_at(rng, policy_s, execute_s)
            .lanes(cores=16, memory=GIB, trials=4000, policy=Policy())
            .lanes
            for _ in range(10)
        ]
        assert max(chosen) <= 3 * min(chosen), (policy_s, execute_s, chosen)


def test_lanes_are_bounded_by_trials_and_by_what_may_be_open(monkeypatch: pytest.MonkeyPatch):
    def counted(trials: int) -> LaneCount:
        return seen(None).lanes(cores=64, memory=GIB, trials=trials, policy=Policy())

    assert counted(80).lanes <= 64
    assert counted(8).lanes == 8
    assert "as many as 8 trials bear" in counted(8).why
    monkeypatch.setattr(limits, "most_workers", lambda: 5)
    assert counted(4000).lanes == 5
    assert "the limit of open files" in counted(4000).why


def test_lanes_are_not_counted_for_a_policy_that_does_not_fit():
    pytest.importorskip("metaworld")
    with pytest.raises(SpecMismatchError, match=r"answers with 3 numbers an action; .* by 4\. "):
        hocket.evaluate(
            env="metaworld:reach", policy="zero", policy_config={"action_size": 3}, episodes=2
        )


@pytest.mark.parametrize("moment", ["init", "reset", "step"])
def test_worker_that_is_lost_before_the_run_begins_costs_a_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "once").mkdir()
    (tmp_path / "once" / moment).touch()
    report = hocket.evaluate(env="support.keyed_envs:Mortal", policy="random", episodes=2)
    assert not (tmp_path / "once" / moment).exists()
    assert report.overall.rate == 1.0
    assert report.overall.errors == 0


def test_worker_that_is_always_lost_is_told_with_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "always").mkdir()
    (tmp_path / "always" / "reset").touch()
    with pytest.raises(WorkerFailed, match=r"lost .*before the run began.*hocket check.* SIGKILL"):
        hocket.evaluate(env="support.keyed_envs:Mortal", policy="random", episodes=2)


def test_a_policy_that_never_answers_is_given_up_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_module, "FIRST_S", 2.0)
    with pytest.raises(PolicyHungError, match="has not returned from infer for 2 s"):
        hocket.evaluate(env="toy:count", policy=Stuck(), lanes="auto", episodes=2)
