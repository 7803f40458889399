from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.core.data import Batch, Outcome
from hocket.core.events import AttemptsBegan, BatchInferred, ChunksExecuted
from hocket.core.specs import PolicySpec
from hocket.errors import ConfigError, PolicyError, RunFolderError, UnknownNameError, UsageError
from hocket.records.ledger.view import LedgerView
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.evaluation import name_of
from support.heard import Heard
from support.processes import DEADLINE_S, children, wait_gone


def results(report: hocket.Report) -> list[tuple[str, str, int, float]]:
    return [(e.trial.id, e.outcome.value, e.steps, e.total_reward) for e in report.episodes]


def test_results_do_not_depend_on_the_number_of_lanes() -> None:
    alone, few, many = (
        hocket.evaluate(env="toy:count", policy="scripted", episodes=40, lanes=lanes)
        for lanes in (1, 4, 16)
    )
    assert results(alone) == results(few) == results(many)
    assert alone.exactness == "bitwise"
    assert len({round(e.total_reward, 6) for e in alone.episodes}) > 30


@pytest.mark.parametrize(
    "settings",
    [
        {"replan": 5},
        {"ensemble": 0.1},
        {"policy_config": {"history": 3}},
        {"exact": True, "policy_config": {"batch_invariant": False, "max_batch": 4}},
        {"env": "toy:image", "policy_config": {"cameras": None}},
        {"env": "toy:buttons"},
        {"env": ("toy:count", "toy:pixels", "toy:image")},
    ],
    ids=str,
)
def test_every_way_to_use_chunks_is_independent_of_lanes(settings: dict[str, Any]) -> None:
    common = {"env": "toy:count", "policy": "scripted", "episodes": 4, **settings}
    assert results(hocket.evaluate(lanes=1, **common)) == results(
        hocket.evaluate(lanes=5, **common)
    )


def test_a_lane_infers_once_for_each_chunk_and_rows_of_other_lanes_do_not_make_it_pay() -> None:
    heard = Heard()
    report = hocket.evaluate(
        env="toy:count", policy="scripted", episodes=24, lanes=8, readers=[heard]
    )
    rows = sum(len(event.lanes) for event in heard.of(BatchInferred))
    chunks = sum(len(event.lanes) for event in heard.of(ChunksExecuted))
    assert rows == chunks == report.throughput.chunks
    steps = [k for event in heard.of(ChunksExecuted) for k in event.steps]
    assert sum(steps) == report.throughput.env_steps == sum(e.steps for e in report.episodes)


def test_every_chunk_is_executed_by_the_lane_and_attempt_that_asked_for_it() -> None:
    heard = Heard()
    hocket.evaluate(env="toy:count", policy="scripted", episodes=12, lanes=4, readers=[heard])
    asked = [
        key
        for event in heard.of(BatchInferred)
        for key in zip(event.lanes, event.trials, event.attempts, event.chunks, strict=True)
    ]
    executed = [
        key
        for event in heard.of(ChunksExecuted)
        for key in zip(event.lanes, event.trials, event.attempts, event.chunks, strict=True)
    ]
    assert sorted(asked, key=str) == sorted(executed, key=str)
    assert len(set(asked)) == len(asked)


def test_an_attempt_is_announced_before_anything_of_it_happens() -> None:
    heard = Heard()
    hocket.evaluate(env="toy:count", policy="scripted", episodes=12, lanes=4, readers=[heard])
    begun: set[tuple[Any, int]] = set()
    for event in heard.events:
        if isinstance(event, AttemptsBegan):
            begun |= set(zip(event.trials, event.attempts, strict=True))
        elif isinstance(event, (BatchInferred, ChunksExecuted)):
            assert begun.issuperset(zip(event.trials, event.attempts, strict=True))


def test_the_longest_episode_is_cut_where_the_user_says() -> None:
    report = hocket.evaluate(env="toy:count", policy="scripted", episodes=5, lanes=2, max_steps=18)
    assert [episode.steps for episode in report.episodes] == [18] * 5


def test_a_live_policy_object_is_used_as_it_is() -> None:
    class Zeros:
        spec = hocket.PolicySpec(chunk_length=8, batch_invariant=True)

        def infer(self, batch: hocket.Batch) -> np.ndarray[Any, Any]:
            return np.zeros((batch.size, 8, 4))

        def close(self) -> None: ...

    report = hocket.evaluate(env="toy:count", policy=Zeros(), episodes=3, lanes=2)
    assert report.overall.n == 3


def test_the_run_folder_reproduces_the_run(tmp_path: Path) -> None:
    from hocket.records.run_file import load_run

    first = hocket.evaluate(
        env="toy:count", policy="scripted", episodes=3, seed=5, lanes=2, out=tmp_path / "a"
    )
    config = EvalConfig.from_plain(load_run(tmp_path / "a" / "run.yaml"))
    again = hocket.evaluate(out=tmp_path / "b", **config.to_plain())
    assert results(first) == results(again)
    assert hocket.Report.load(tmp_path / "a").overall == first.overall


def test_a_run_that_never_began_leaves_no_folder_in_the_way(tmp_path: Path) -> None:
    common: dict[str, Any] = {"env": "toy:count", "episodes": 1, "out": tmp_path / "run"}
    with pytest.raises(PolicyError):
        hocket.evaluate(policy=Raising(), **common)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError):
        hocket.evaluate(policy="scripted", policy_devices=("cpu",), lanes=1, **common)
    assert hocket.evaluate(policy="scripted", **common).complete


def test_trials_are_planned_seed_by_seed_over_all_tasks() -> None:
    config = EvalConfig(env=("metaworld:mt10",), policy="reference", episodes=2, seed=7)
    trials = Assembly(config).plan(config.seed, config.episodes)
    assert len(trials) == 20
    assert [trial.seed for trial in trials] == [7] * 10 + [8] * 10


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"env": "metawrld:mt10"}, UnknownNameError, "metaworld"),
        ({"env": "metaworld:psh"}, UnknownNameError, "push"),
        ({"policy": "refrence"}, UnknownNameError, "reference"),
        ({"policy": "no_such.models:Net"}, UnknownNameError, "there is no module 'no_such.models'"),
        ({"episods": 3}, ConfigError, "episodes"),
        ({"env_config": {"lenght_min": 3}}, ConfigError, "length_min"),
        ({"policy_config": {"chunk_lenth": 3}}, ConfigError, "chunk_length"),
        ({"lanes": 0}, ConfigError, "lanes"),
        ({"lanes": 2.5}, ConfigError, "lanes is 2.5; it must be a whole number, or 'auto'"),
        ({"episodes": "3"}, ConfigError, "episodes is '3'; it must be a whole number"),
        ({"exact": "yes"}, ConfigError, "exact is 'yes'; it must be true or false"),
        ({"worker_memory": "2G"}, ConfigError, "worker_memory is '2G'"),
        ({"env_config": [1]}, ConfigError, "env_config .* a mapping"),
        ({"record": "some"}, ConfigError, "'none' or 'numbers' or 'data' or 'full'"),
        ({"replan": 0}, ConfigError, "replan"),
        ({"replan": 99}, ConfigError, "99"),
        ({"policy_devices": ("cuda:0",)}, UsageError, "device"),
    ],
    ids=str,
)
def test_bad_input_is_a_clear_error(
    settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    common = {"env": "toy:count", "policy": "scripted", "episodes": 1, "lanes": 1}
    with pytest.raises(error, match=words):
        hocket.evaluate(**{**common, **settings})


class NoPolicy:
    def infer(self, batch: Batch) -> None: ...


class Raising:
    spec = PolicySpec(chunk_length=4)

    def infer(self, batch: Batch) -> Any:
        self.open_drawer()

    def open_drawer(self) -> None:
        raise LookupError("no such drawer")

    def close(self) -> None: ...


@pytest.mark.parametrize("policy", [f"{__name__}:NoPolicy", NoPolicy()], ids=["name", "object"])
def test_an_object_that_is_no_policy_is_told_what_it_lacks(policy: Any) -> None:
    with pytest.raises(PolicyError, match=r"lacks `spec`.* and the method `close\(\)`"):
        hocket.evaluate(env="toy:count", policy=policy, episodes=1, lanes=1)


@pytest.mark.parametrize("lanes", [2, "auto"])
def test_a_policy_that_raises_is_shown_with_its_own_traceback(lanes: int | str) -> None:
    settings: dict[str, Any] = {"env": "toy:count", "episodes": 2, "lanes": lanes, "retries": 0}
    try:
        report = hocket.evaluate(policy=Raising(), **settings)
    except PolicyError as error:  # where the first chunk tells how many lanes are worth it
        told = str(error)
    else:
        told = report.episodes[0].error or ""
    assert "no such drawer" in told
    assert "in open_drawer" in told, "the user's own lines"


def test_a_factory_inside_a_function_is_refused_with_advice() -> None:
    def make() -> None: ...

    with pytest.raises(UsageError, match="Put it into a file"):
        name_of(make)


SCRIPT = """
import sys
import hocket
from hocket.core.events import BatchInferred

class Tell:
    def on(self, event):
        if isinstance(event, BatchInferred) and event.batch == 6:
            print("running", flush=True)
    def close(self): ...

report = hocket.evaluate(
    env="toy:count", policy="scripted", episodes=400, lanes=4, readers=[Tell()],
    env_config={"step_s": 0.01},
)
print("complete" if report.complete else "interrupted", len(report.episodes), flush=True)
"""


def start_script() -> tuple[subprocess.Popen[str], list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    workers = children(process.pid)
    assert len(workers) >= 5
    return process, workers


def test_ctrl_c_keeps_what_has_ended_and_leaves_no_process() -> None:
    process, workers = start_script()
    with process:
        assert process.stdout is not None
        os.kill(process.pid, signal.SIGINT)
        said = process.stdout.readline()
        process.wait(DEADLINE_S)
        assert said.startswith("interrupted")
        wait_gone(workers)


def test_after_sigkill_of_the_main_process_every_worker_is_gone() -> None:
    process, workers = start_script()
    with process:
        process.kill()
        process.wait(DEADLINE_S)
        wait_gone(workers)


@pytest.mark.slow
def test_envs_whose_tasks_have_one_name_do_not_meet() -> None:
    envs = ("support.twin_suites:Low", "support.twin_suites:High")
    alone, few, many = (
        hocket.evaluate(
            env=envs, policy="random", episodes=4, lanes=lanes, policy_config={"chunk_length": 3}
        )
        for lanes in (1, 2, 8)
    )
    assert results(alone) == results(few) == results(many)
    for episode in alone.episodes:
        low, high = (-12, 0) if episode.trial.suite == envs[0] else (60, 108)
        assert low <= episode.total_reward <= high


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_sink_without_space_stops_the_run_instead_of_counting_errors(
    tmp_path: Path, lanes: int
) -> None:
    with pytest.raises(RunFolderError, match=r"^No space is left for 'x'\.$"):
        hocket.evaluate(
            env="support.full_disk:FullAt2",
            policy="zero",
            episodes=6,
            lanes=lanes,
            video="none",
            out=tmp_path / "run",
        )
    with LedgerView.open(tmp_path / "run") as ledger:
        assert 2 in [trial.seed for trial in ledger.remaining()]
        assert all(episode.outcome is Outcome.FAILURE for episode in ledger.episodes())
