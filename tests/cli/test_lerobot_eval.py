"""`hocket lerobot-eval` does what LeRobot's own command does, with the same results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.adapters.envs.lerobot import LeRobotEnvs
from hocket.cli import USAGE
from hocket.core.contracts.env import LEROBOT, start_scheme
from hocket.errors import ConfigError
from support.commands import run_here
from support.libero_venv import DATA
from support.parts import ROOT, needs_venv, python_of

PYTHON = python_of("lerobot")
NEEDS = [pytest.mark.slow, pytest.mark.timeout(600), needs_venv("lerobot")]
BENCHMARK = ROOT / "benchmarks" / "peers" / "lerobot_eval.py"


def tasks(kind: str, **settings: object) -> list[tuple[str, str, int | None]]:
    suite = LeRobotEnvs(kind, LeRobotEnvs.Config(settings=json.dumps(settings)))
    return [(task.name, task.prompt, task.max_steps) for task in suite.tasks()]


def test_without_lerobot_it_says_how_to_get_it(tmp_path: Path) -> None:
    done = run_here(tmp_path, "lerobot-eval", "--env.type=pusht")
    assert done.returncode == USAGE
    assert "hocket venv lerobot builds one" in done.stderr
    done = run_here(tmp_path, "lerobot-eval", "--env.type=pusht", "--python", "no/python")
    assert "there is no no/python" in done.stderr


def test_liberos_tasks_have_lerobots_names_and_limits() -> None:
    found = tasks("libero", task="libero_spatial, libero_goal", task_ids=[7, 1])
    words = "pick up the black bowl next to the ramekin and place it on the plate"
    assert found[0] == ("libero_spatial_1", words, 280)
    assert [name for name, _, _ in found] == [
        *("libero_spatial_1", "libero_spatial_7", "libero_goal_1", "libero_goal_7")
    ]
    assert {steps for _, _, steps in tasks("libero", task="libero_90", episode_length=31)} == {31}
    with pytest.raises(ConfigError, match="libero_goal has no task 10"):
        tasks("libero", task="libero_goal", task_ids=[10])
    with pytest.raises(ConfigError, match="no suite 'libero_hard'"):
        tasks("libero", task="libero_hard")


def test_settings_that_are_no_object_are_refused() -> None:
    for text in ("{", "[1]"):
        with pytest.raises(ConfigError, match="settings"):
            LeRobotEnvs.Config(settings=text)


def test_lerobots_starts_are_of_the_seed_alone() -> None:
    scheme = start_scheme(LEROBOT)
    assert scheme.seed("reach-v3", 1000) == scheme.seed("push-v3", 1000) == 1000
    assert not scheme.is_independent


def test_metaworld_starts_at_the_second_draw_of_the_seed() -> None:
    pytest.importorskip("metaworld")
    from gymnasium.utils import seeding

    from hocket.adapters.envs.metaworld import MetaWorld

    env = MetaWorld("reach", MetaWorld.Config(cameras=(), start_scheme=LEROBOT)).make("reach-v3")
    env.reset(seed=1000)
    space, rng = env.sim._random_reset_space, seeding.np_random(1000)[0]
    draws = [rng.uniform(space.low, space.high, size=space.low.size) for _ in range(2)]
    assert env.start == pytest.approx(draws[1], abs=1e-12)
    env.close()


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(name, marks=NEEDS)
        for name in (
            "pusht_is_as_lerobots_and_is_resumed",
            "envs_of_third_parties_are_as_in_lerobot",
            "what_cannot_be_done_is_said",
            "native_envs_show_what_lerobots_do",
        )
    ],
)
def test_it_is_as_lerobots(check: str, tmp_path: Path) -> None:
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    variables["MUJOCO_GL"] = "egl"
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    if (DATA / "assets").is_dir():
        variables.pop("HOCKET_LIBERO_DATA", None)
        laid_out = [str(PYTHON), str(BENCHMARK), "lay-out-libero", str(DATA), str(tmp_path)]
        subprocess.run(laid_out, check=True, capture_output=True, timeout=100)
        variables |= {"LIBERO_CONFIG_PATH": str(tmp_path), "LIBERO_ASSETS": str(DATA / "assets")}
    script = str(ROOT / "tests" / "support" / "lerobot_eval_checks.py")
    done = subprocess.run(
        [str(PYTHON), script, check, str(tmp_path)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.mark.parametrize("where", [pytest.param("flag", marks=NEEDS)])
def test_it_runs_in_the_interpreter_that_is_named(where: str, tmp_path: Path) -> None:
    del where
    done = subprocess.run(
        [sys.executable, "-m", "hocket", "lerobot-eval", "--python", str(PYTHON), "--env.type=x"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "invalid choice" in done.stderr or "LeRobot refuses" in done.stderr, done.stderr
