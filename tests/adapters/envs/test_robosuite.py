"""robosuite 1.5's tasks with one Panda."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import hocket
from hocket.adapters.envs.robosuite import TASKS, Robosuite, RobosuiteConfig
from hocket.errors import ConfigError, UnknownNameError
from support.parts import ROOT, needs_venv, python_of

PYTHON = python_of("robosuite")
AROUND = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
NEEDS = [pytest.mark.slow, pytest.mark.timeout(900), needs_venv("robosuite")]
CHECKS = [
    "tasks_that_are_drawn_anew_conform",
    "every_task_starts_by_its_seed_and_steps_as_robosuites_own",
    "importing_loads_no_opengl",
]


def test_the_suite_is_known_without_the_simulator() -> None:
    code = (
        "import sys; from hocket.adapters.envs.robosuite import Robosuite, RobosuiteConfig;"
        "print(len(Robosuite('panda', RobosuiteConfig()).tasks()), 'mujoco' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(TASKS)), "False"]
    (lift,) = Robosuite("Lift", RobosuiteConfig(max_steps=7)).tasks()
    assert (lift.prompt, lift.max_steps) == ("lift the red cube", 7)
    with pytest.raises(UnknownNameError, match="Did you mean 'Lift'"):
        Robosuite("lift", RobosuiteConfig())
    with pytest.raises(ConfigError, match="size"):
        RobosuiteConfig(size=0)


@pytest.mark.parametrize("name", [pytest.param(each, marks=NEEDS) for each in CHECKS])
def test_it_holds_in_the_real_simulator(name: str) -> None:
    done = subprocess.run(
        [PYTHON, ROOT / "tests" / "support" / "robosuite_checks.py", name],
        env=AROUND,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr


class Grasps:
    """Lifts the cube: above it, down, close, up."""

    spec = hocket.PolicySpec(chunk_length=4, action_size=7, cameras=())

    def infer(self, batch: hocket.Batch) -> hocket.Actions:
        hand = batch.arrays["observation/robot0_eef_pos"]
        cube = batch.arrays["observation/cube_pos"]
        fingers = batch.arrays["observation/robot0_gripper_qpos"]
        away = cube - hand
        actions = np.zeros((batch.size, 4, 7))
        for row in range(batch.size):
            is_over, is_down = np.hypot(*away[row, :2]) < 0.01, abs(away[row, 2]) < 0.01
            is_shut = fingers[row, 0] < 0.035
            to = away[row] + [0, 0, 0.0 if is_over else 0.1]
            move = np.array([0, 0, 0.3]) if is_down and is_shut else to
            actions[row, :, :3] = np.clip(4 * move, -1, 1)
            actions[row, :, 6] = 1.0 if is_over and is_down else -1.0
        return actions

    def close(self) -> None: ...


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_venv("robosuite")
def test_lift_is_solved_and_told() -> None:
    report = hocket.evaluate(
        env="robosuite:Lift", policy=Grasps(), episodes=3, lanes=2, env_python=str(PYTHON)
    )
    assert report.overall.success.successes == 3
    assert report.overall.errors == 0
