"""`hocket check` finds envs that ignore their seed."""

from __future__ import annotations

from typing import Any

import pytest

from hocket import cli
from hocket.runs.check import CheckResult, run_check
from hocket.runs.config import EvalConfig


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
