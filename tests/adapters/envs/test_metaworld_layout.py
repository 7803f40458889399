"""MetaWorld as LeRobot's env shows it, for checkpoints that were trained with that."""

import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.adapters.envs.metaworld import PROMPTS, MetaWorld
from hocket.errors import ConfigError
from support.parts import ROOT, needs, needs_venv, python_of
from support.processes import DEADLINE_S

PYTHON = python_of("lerobot")
TASKS = ("reach-v3", "door-open-v3", "assembly-v3")
THEIRS = """
import os, pickle, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from hocket.adapters.policies.lerobot.folder import mend_torchvision
mend_torchvision()
from lerobot.envs.metaworld import MetaworldEnv
from metaworld.types import Task
task, given, found = sys.argv[1:]
given = np.load(given)
env = MetaworldEnv(task, obs_type="pixels_agent_pos")
env.reset()  # makes the simulator, which is not there before
start = dict(env_cls=type(env._env), rand_vec=given["start"], partially_observable=False)
env._env.set_task(Task(env_name=task, data=pickle.dumps(start)))
seen = [env.reset()[0], *(env.step(action)[0] for action in given["actions"])]
np.savez(found, **{key: np.stack([some[key] for some in seen]) for key in seen[0]})
sys.stdout.flush()
os._exit(0)  # its OpenGL context cannot be freed at exit
"""


def make(task: str, **config: Any) -> Any:
    return MetaWorld(task, MetaWorld.Config(layout="lerobot", **config)).make(task)


def test_the_layout_says_the_size_where_nobody_does() -> None:
    assert MetaWorld.Config().size == 224
    assert MetaWorld.Config(layout="lerobot").size == 480
    assert MetaWorld.Config(layout="lerobot", size=96).size == 96
    with pytest.raises(ConfigError, match="layout is 'own' or 'lerobot', not 'le'"):
        MetaWorld.Config(layout="le")


def test_prompts_come_from_a_file_of_lerobots_form_or_a_plain_one(tmp_path: Path) -> None:
    def prompts(content: Any) -> dict[str, str]:
        (tmp_path / "prompts.json").write_text(json.dumps(content))
        config = MetaWorld.Config(prompts=str(tmp_path / "prompts.json"))
        return {task.name: task.prompt for task in MetaWorld("mt50", config).tasks()}

    assert prompts({"TASK_DESCRIPTIONS": {"push-v3": "Push it"}, "TASK_NAME_TO_ID": {}}) == {
        **PROMPTS,
        "push-v3": "Push it",
    }
    assert prompts({"reach-v3": "Reach it"})["reach-v3"] == "Reach it"
    with pytest.raises(ConfigError, match="no task 'push'"):
        prompts({"push": "Push it"})
    with pytest.raises(ConfigError, match="a prompt for each task"):
        prompts(["Push it"])
    with pytest.raises(ConfigError, match="cannot be read"):
        MetaWorld("push", MetaWorld.Config(prompts=str(tmp_path / "none.json")))


@needs("metaworld", is_there=bool(find_spec("metaworld")), how="make setup")
def test_the_state_is_the_hand_alone_and_states_are_restored() -> None:
    env, whole = make("push-v3"), MetaWorld("push", MetaWorld.Config()).make("push-v3")
    for some in (env, whole):
        some.use_cameras(())
    state = env.reset(seed=1)[0]["observation/state"]
    assert state.shape == env.observation_space["observation/state"].shape == (4,)
    np.testing.assert_array_equal(state, whole.reset(seed=1)[0]["observation/state"][:4])
    snapshot = env.get_state()
    moved = [env.step(np.ones(4, np.float32))[0]["observation/state"] for _ in range(3)]
    env.set_state(snapshot)
    again = [env.step(np.ones(4, np.float32))[0]["observation/state"] for _ in range(3)]
    np.testing.assert_array_equal(moved, again)


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs("metaworld", is_there=bool(find_spec("metaworld")), how="make setup")
@needs_venv("lerobot")
@pytest.mark.parametrize("task", TASKS)
def test_pictures_and_states_are_those_of_lerobots_own_env(task: str, tmp_path: Path) -> None:
    env = make(task)
    actions = np.random.default_rng(0).uniform(-1, 1, (3, 4)).astype(np.float32)
    seen = [env.reset(seed=3)[0], *(env.step(action)[0] for action in actions)]
    backend = env.facts["gl_backend"]
    np.savez(tmp_path / "given.npz", start=env.start, actions=actions)
    env.close()
    files = (str(tmp_path / "given.npz"), str(tmp_path / "theirs.npz"))
    done = subprocess.run(
        [str(PYTHON), "-c", THEIRS, task, *files],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "MUJOCO_GL": backend},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S * 3,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = np.load(files[1])
    assert theirs["pixels"].shape == (4, 480, 480, 3)
    for i, ours in enumerate(seen):
        np.testing.assert_array_equal(ours["observation/image"], theirs["pixels"][i])
        np.testing.assert_array_equal(ours["observation/state"], theirs["agent_pos"][i])
