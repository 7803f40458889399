"""`hocket check` finds envs that ignore their seed, and so does every run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import cli
from hocket.core.events import BatchInferred, Event, StartsCompared
from hocket.results.report import Report
from hocket.results.run_folder import rebuild_report
from hocket.results.showing.live import read_status
from hocket.results.showing.progress import ProgressDisplay
from hocket.runs.checks.check import CheckResult, run_check
from hocket.runs.config import EvalConfig
from hocket.runs.run import Run
from support.heard import Heard
from support.seeding_env import Drawn


def check(env: str = "support.seeding_env:make", **env_config: Any) -> CheckResult:
    return run_check(EvalConfig(env=(env,), policy="zero", env_config=env_config, seed=3))


@pytest.mark.parametrize(
    ("way", "when"), [("unseeded", "reset again"), ("made once", "reset again")]
)
def test_an_env_that_ignores_its_seed_is_a_problem(way: str, when: str) -> None:
    (problem,) = check(way=way).problems
    assert "The same trial does not start the same" in problem
    assert f"of seed 3 differs {when}" in problem


@pytest.mark.parametrize("way", ["seeded", "global"])
def test_an_env_that_starts_as_its_seed_says_is_none(way: str) -> None:
    result = check(way=way)
    assert result.problems == ()
    assert not any("same start" in warning for warning in result.warnings)


def test_seeds_that_all_start_alike_are_told_and_no_problem() -> None:
    result = check(way="constant")
    assert result.problems == ()
    assert any("Seeds 3 to 5 give the same start" in warning for warning in result.warnings)


class Push:
    """Gives `by` at every step, and wants two frames."""

    def __init__(self, by: float) -> None:
        self.spec = hocket.PolicySpec(chunk_length=2, action_size=1, history=2)
        self._by = by

    def infer(self, batch: hocket.Batch) -> hocket.Actions:
        return hocket.Actions(np.full((batch.size, 2, 1), self._by))

    def close(self) -> None: ...


def push() -> Push:
    return Push(1.0)


def rest() -> Push:
    return Push(0.0)


@pytest.mark.parametrize(("policy", "count"), [("push", 1), ("rest", 0)])
def test_a_start_that_tells_of_a_contact_of_the_episode_before_is_a_problem(
    policy: str, count: int
) -> None:
    """Resets alone do not show it, nor does a policy that touches nothing."""
    problems = run_check(
        EvalConfig(
            env=("support.seeding_env:make",),
            policy=f"{__name__}:{policy}",
            env_config={"way": "touches"},
        )
    ).problems
    assert len(problems) == count
    for problem in problems:
        assert "of seed 0 differs after an episode of the policy's" in problem
        assert "such as a contact" in problem


def test_rows_of_a_batched_simulator_are_examined_in_a_process_of_their_own() -> None:
    result = check("mjx:reach", backend="c", threads=1)
    assert result.problems == ()
    assert not any("same start" in warning for warning in result.warnings)


def test_the_command_ends_with_1_where_a_trial_cannot_be_repeated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["check", "--env", "support.seeding_env:make", "--policy", "zero"]
    assert cli.main([*arguments, "--env.way", "unseeded"]) == 1
    assert "does not start the same" in " ".join(capsys.readouterr().out.split())
    assert cli.main(arguments) == 0


def run(folder: Path, way: str, **settings: Any) -> hocket.Report:
    settings = {"episodes": 3, "lanes": 1, "video": "none", **settings}
    return hocket.evaluate(
        env="support.seeding_env:make",
        policy="zero",
        env_config={"way": way},
        out=folder,
        **settings,
    )


@pytest.mark.parametrize("way", ["unseeded", "made once"])
def test_a_run_in_an_env_that_ignores_its_seed_does_not_claim_to_be_exact(
    tmp_path: Path, way: str
) -> None:
    report = run(tmp_path / "run", way)
    assert report.claim.unseeded == ("support.seeding_env:make",)
    assert "to the bit" not in report.summary
    assert "ignores its seed" in report.summary
    assert Report.load(tmp_path / "run").claim.unseeded == report.claim.unseeded
    assert rebuild_report(tmp_path / "run").claim == report.claim, "the ledger keeps it"
    page = (tmp_path / "run" / "report.html").read_text()
    assert "ignores its seed" in page
    assert "same result to the bit" not in page


def test_a_run_in_an_env_that_uses_its_seed_does(tmp_path: Path) -> None:
    report = run(tmp_path / "run", "seeded")
    assert report.claim.unseeded == ()
    assert "Same trial, same result to the bit." in report.summary


def test_each_suite_is_judged_for_itself_in_workers_too() -> None:
    report = hocket.evaluate(
        env=("toy:count", "support.seeding_env:make"),
        policy="zero",
        env_config={"way": "unseeded"},
        episodes=2,
        lanes=2,
    )
    assert report.claim.unseeded == ("support.seeding_env:make",)


def hear(env: str, **settings: Any) -> list[Event]:
    settings = {"episodes": 3, "lanes": 1, "policy": "zero", **settings}
    heard = Heard()
    with Run.new(EvalConfig(env=(env,), **settings), None) as begun:
        begun.finish(readers=[heard])
    return heard.of(StartsCompared, BatchInferred)


@pytest.mark.parametrize(("way", "differs"), [("seeded", ""), ("unseeded", "observation/state")])
def test_a_run_knows_it_before_its_first_batch_and_looks_once(way: str, differs: str) -> None:
    first, *others = hear("support.seeding_env:make", env_config={"way": way})
    assert isinstance(first, StartsCompared)
    assert (first.suite, first.differs) == ("support.seeding_env:make", differs)
    assert not any(isinstance(event, StartsCompared) for event in others)


def test_workers_that_live_for_one_episode_are_looked_at_too() -> None:
    first, *_ = hear("support.seeding_env:make", env_config={"way": "unseeded"}, recycle_after=1)
    assert isinstance(first, StartsCompared)
    assert first.differs


@pytest.mark.parametrize("drifts", [False, True])
def test_rows_of_a_batched_simulator_are_looked_at_too(*, drifts: bool) -> None:
    settings = {"env_config": {"drifts": drifts}, "lanes": 4, "policy": "random"}
    first, *_ = hear("support.row_toys:RowToys", **settings)
    assert isinstance(first, StartsCompared)
    assert bool(first.differs) == drifts


def test_an_attempt_that_is_lost_at_its_reset_leaves_the_look_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Drawn, "resets", 0)
    told = hear("support.seeding_env:make", env_config={"way": "seeded", "breaks": 1})
    assert [type(event) for event in told].count(StartsCompared) == 1


def test_an_env_that_cannot_be_reset_twice_in_a_row_is_run_unjudged() -> None:
    settings: dict[str, Any] = {"env_config": {"way": "once"}, "episodes": 4, "retries": 0}
    told = hear("support.seeding_env:make", **settings)
    assert [type(event) for event in told] == [BatchInferred] * 4


def test_who_follows_a_run_is_told_at_once(tmp_path: Path) -> None:
    config = EvalConfig(
        env=("support.seeding_env:make",),
        policy="zero",
        env_config={"way": "unseeded"},
        lanes=1,
        video="none",
    )
    said = io.StringIO()
    with Run.new(config, tmp_path / "run") as begun:
        begun.finish(readers=[ProgressDisplay(stream=said)])
    assert "gave another start when one trial was reset twice" in said.getvalue()
    status = read_status(tmp_path / "run")
    assert status is not None
    assert any("ignores its seed" in note for note in status["notes"])
