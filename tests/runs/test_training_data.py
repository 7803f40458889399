"""`hocket check --data` finds each mistake that makes a good policy fail, and none where there is
none. Datasets and starts are drawn anew in each run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from hocket.cli import main
from hocket.errors import ConfigError
from hocket.exports.collect import CollectConfig, collect
from hocket.runs.checks.check import CheckResult, run_check
from hocket.runs.config import EvalConfig
from support.mistaken import OF_ENVS, OF_POLICIES

SEEDS = 10**6
SETTINGS: dict[str, Any] = {"cameras": ["corner2", "gripperPOV"], "size": 64, "render": "fast"}
SOUND: tuple[tuple[str, dict[str, Any]], ...] = (
    ("push", SETTINGS),
    ("reach", {**SETTINGS, "cameras": ["topview"]}),
    ("button-press-topdown", {**SETTINGS, "cameras": ["corner", "behindGripper"]}),
    ("window-open", {**SETTINGS, "cameras": ["corner3", "gripperPOV"], "size": 96}),
    ("door-open", {**SETTINGS, "size": 84}),
)


def collected(out: Path, task: str, settings: dict[str, Any]) -> int:
    """Write a dataset of a task; the seed of its first episode."""
    seed = random.Random().randrange(SEEDS)
    run = EvalConfig(
        env=(f"metaworld:{task}",),
        env_config=settings,
        policy="metaworld-expert",
        episodes=6,
        seed=seed,
        video="none",
        lanes=2,
    )
    collect(CollectConfig(run=run), out)
    return seed


def checked(
    data: Path, task: str, settings: dict[str, Any], *, env: str = "", policy: str = ""
) -> CheckResult:
    """What a check says of a policy that has learnt these data; `env` and `policy` are mistakes."""
    config = EvalConfig(
        env=("support.mistaken:Mistaken",),
        env_config={**settings, "task": task, "mistake": env},
        policy="support.mistaken:Nearest",
        policy_config={"data": str(data), "mistake": policy},
        seed=random.Random().randrange(SEEDS),
        lanes=1,
    )
    return run_check(config, data=data)


def test_what_is_no_dataset_is_refused(tmp_path: Path) -> None:
    config = EvalConfig(env=("toy:image",), policy="random")
    with pytest.raises(ConfigError, match=r"no LeRobot dataset: it has no meta/info\.json"):
        run_check(config, data=tmp_path)


def test_a_policy_that_has_other_habits_than_the_data_is_told_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = EvalConfig(env=("toy:plain",), policy="scripted", episodes=4, video="none", lanes=1)
    collect(CollectConfig(run=made, failures=True), tmp_path / "data")
    sheet = ("--out", str(tmp_path / "sheet.png"))
    same = ("check", "--env", "toy:plain", "--data", str(tmp_path / "data"), *sheet)
    assert main([*same, "--policy", "scripted"]) == 0
    assert main([*same, "--policy", "random"]) == 1
    assert "1. Asked about frames of the data, the policy" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("task", ["push", "pick-place"])
def test_nearly_every_planted_mistake_is_found_and_named_first(tmp_path: Path, task: str) -> None:
    pytest.importorskip("metaworld")
    seed = collected(tmp_path / "data", task, SETTINGS)
    missed = []
    for kinds, where in ((OF_ENVS, "env"), (OF_POLICIES, "policy")):
        for kind, says in kinds.items():
            result = checked(tmp_path / "data", task, SETTINGS, **{where: kind})
            found = [mistake.text for mistake in result.mistakes]
            if not found or says not in found[0]:
                missed.append((kind, result.trial.seed, found))
    assert len(missed) <= (len(OF_ENVS) + len(OF_POLICIES)) // 10, (seed, missed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("task", "settings"), SOUND)
def test_a_sound_pair_is_not_suspected(tmp_path: Path, task: str, settings: dict[str, Any]) -> None:
    pytest.importorskip("metaworld")
    seed = collected(tmp_path / "data", task, settings)
    for _ in range(2):
        result = checked(tmp_path / "data", task, settings)
        assert not result.problems
        said = [mistake.text for mistake in result.mistakes]
        assert not said, f"Data from seed {seed}, trial {result.trial.id}: {said}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_is_given_and_what_was_trained_on_stand_side_by_side(tmp_path: Path) -> None:
    pytest.importorskip("metaworld")
    collected(tmp_path / "data", "push", SETTINGS)
    result = checked(tmp_path / "data", "push", SETTINGS, env="upside down")
    first, second, *_ = result.pictures
    assert (first, second) == ("observation/image given", "observation.images.image trained")
    assert result.save_contact_sheet(tmp_path / "sheet.png")
