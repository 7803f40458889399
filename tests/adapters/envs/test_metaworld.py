from __future__ import annotations

import pickle
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from hocket.adapters.envs import compiled
from hocket.adapters.envs.metaworld import (
    CAMERAS,
    CONTROL_RATE,
    MT10,
    PROMPTS,
    UPSIDE_DOWN,
    MetaWorld,
)
from hocket.core.contracts.env import DeferredObservation, Holds, SelectsCameras, Snapshot
from hocket.errors import ConfigError, EnvError, ObservationError, UnknownNameError
from hocket.workers.env.simulator_model import model_digest
from support.parts import needs

pytestmark = needs("metaworld", is_there=bool(find_spec("metaworld")), how="make setup")
STATE = "observation/state"
ODD = {"basketball-v3", "bin-picking-v3", "door-lock-v3", "shelf-place-v3", "sweep-into-v3"}
"""Tasks that keep more than most in the simulator or in MetaWorld between episodes."""
TASKS = [
    task if task in ODD or task in MT10 else pytest.param(task, marks=pytest.mark.slow)
    for task in PROMPTS
]


def make(task: str, **config):
    suite = MetaWorld(task, MetaWorld.Config(**config))
    env = suite.make(suite.tasks()[0].name)
    env.use_cameras(())
    return env


def actions(count: int, seed: int = 0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, 4)).astype(np.float32)


def play(env, moves):
    """Rewards, successes and states, as one array."""
    rows = []
    for move in moves:
        reward, terminated, truncated, info = env.advance(move)
        rows.append([reward, terminated, truncated, info["success"], *env.observe()[STATE]])
    return np.array(rows)


# -- the suite -----------------------------------------------------------------------------------


def test_importing_the_suite_loads_no_simulator():
    code = (
        "import sys; from hocket.adapters.envs.metaworld import MetaWorld;"
        "MetaWorld('mt50', MetaWorld.Config()).tasks();"
        "sys.exit(any(m in sys.modules for m in ('mujoco', 'metaworld', 'OpenGL')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=100, check=False).returncode == 0


def test_importing_the_simulator_loads_no_opengl_whatever_mujoco_gl_says():
    code = (
        "import os, sys; os.environ['MUJOCO_GL'] = 'egl';"
        "import hocket.adapters.envs.metaworld.env;"
        "sys.exit('OpenGL' in sys.modules or os.environ['MUJOCO_GL'] != 'egl')"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=100, check=False).returncode == 0


def test_names_mean_one_ten_or_fifty_tasks():
    def names(argument):
        return [task.name for task in MetaWorld(argument, MetaWorld.Config()).tasks()]

    assert names("push") == names("push-v3") == ["push-v3"]
    assert names("mt10") == list(MT10)
    assert len(names("mt50")) == 50


def test_the_table_of_tasks_is_metaworlds():
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS, MT10_V3

    assert set(PROMPTS) == set(ALL_V3_ENVIRONMENTS)
    assert list(MT10) == list(MT10_V3)
    assert len(set(PROMPTS.values())) == 50


@pytest.mark.parametrize(("wrong", "right"), [("puhs", "push"), ("mt01", "mt10"), ("", "mt10")])
def test_an_unknown_task_is_refused_with_the_nearest_name(wrong, right):
    with pytest.raises(UnknownNameError, match=right):
        MetaWorld(wrong, MetaWorld.Config())


def test_an_unknown_camera_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="corner2"):
        MetaWorld.Config(cameras=("cornr2",))


def test_control_rate_is_the_simulators():
    env = make("reach")
    assert 1 / env.sim.dt == CONTROL_RATE
    env.close()


# -- seeds ---------------------------------------------------------------------------------------


def fresh_upstream(task, start, *, hide_goal=False):
    """MetaWorld's own env, newly made, told to lay its scene out by this vector."""
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    from metaworld.types import Task

    sim = ALL_V3_ENVIRONMENTS[task]()
    data = {"env_cls": type(sim), "rand_vec": start, "partially_observable": hide_goal}
    sim.set_task(Task(env_name=task, data=pickle.dumps(data)))
    return sim, sim.reset()[0]


@pytest.mark.parametrize("task", TASKS)
def test_a_start_depends_on_the_seed_alone_and_is_metaworlds_own(task):
    moves = actions(8)
    env = make(task)
    first = env.reset(seed=7)[0][STATE]
    start = env.start
    for seed in (3, 4):  # a history that must leave no trace
        env.reset(seed=seed)
        play(env, actions(5, seed))
    again = env.reset(seed=7)[0][STATE]
    ours = play(env, moves)
    env.close()

    sim, expected = fresh_upstream(task, start)
    theirs = [sim.step(move) for move in moves]
    sim.close()
    assert np.array_equal(first, again)
    assert np.array_equal(again, expected)
    assert np.array_equal(ours[:, 4:], [step[0] for step in theirs])
    assert np.array_equal(ours[:, 0], [step[1] for step in theirs])


def test_seeds_differ_and_there_are_more_than_fifty():
    env = make("pick-place")
    starts = {env.reset(seed=seed)[0][STATE].tobytes() for seed in range(60)}
    env.close()
    assert len(starts) == 60


def test_tasks_of_one_seed_start_at_quantiles_of_their_own():
    def quantiles(task, argument="mt10"):
        env = MetaWorld(argument, MetaWorld.Config()).make(f"{task}-v3")
        env.use_cameras(())
        space = env.sim._random_reset_space
        drawn = []
        for seed in range(4):
            env.reset(seed=seed)
            drawn.append(env.start)
        env.close()
        return np.array([(start - space.low)[0] / (space.high - space.low)[0] for start in drawn])

    door, drawer = quantiles("door-open"), quantiles("drawer-open")
    assert np.abs(door - drawer).max() > 0.05
    assert np.array_equal(door, quantiles("door-open", argument="door-open"))


def test_reset_without_a_seed_goes_on_from_the_last_one():
    env = make("reach")
    env.reset(seed=5)
    first = env.reset()[0][STATE]
    second = env.reset()[0][STATE]
    env.reset(seed=5)
    again = env.reset()[0][STATE]
    env.close()
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_the_same_action_in_another_dtype_gives_the_same_bits():
    env = make("push")
    moves = actions(5)
    env.reset(seed=1)
    single = play(env, moves)
    env.reset(seed=1)
    double = play(env, moves.astype(np.float64))
    env.close()
    assert np.array_equal(single, double)


def test_the_goal_is_visible_unless_hidden():
    shown, hidden = make("push"), make("push", hide_goal=True)
    seen = shown.reset(seed=0)[0][STATE]
    unseen = hidden.reset(seed=0)[0][STATE]
    shown.close()
    hidden.close()
    assert np.all(unseen[-3:] == 0)
    assert np.any(seen[-3:] != 0)
    assert np.array_equal(seen[:-3], unseen[:-3])


# -- steps ---------------------------------------------------------------------------------------


def test_step_is_advance_then_observe():
    env = make("push")
    moves = actions(4)
    env.reset(seed=2)
    deferred = play(env, moves)
    env.reset(seed=2)
    stepped = np.array([env.step(move)[0][STATE] for move in moves])
    env.close()
    assert np.array_equal(deferred[:, 4:], stepped)


def test_an_episode_is_truncated_at_max_steps():
    env = make("reach", max_steps=3)
    env.reset(seed=0)
    ends = play(env, actions(3))
    env.close()
    assert ends[:, 2].tolist() == [0, 0, 1]


def test_a_step_before_reset_is_refused():
    env = make("reach")
    with pytest.raises(EnvError, match="reset"):
        env.advance(np.zeros(4))
    env.close()


def test_holding_still_keeps_the_hand_and_the_gripper():
    env = make("reach")
    assert isinstance(env, Holds)
    assert env.hold_action(None).tolist() == [0, 0, 0, 0]
    assert env.hold_action(np.array([1, -1, 0.5, 0.25], np.float32)).tolist() == [0, 0, 0, 0.25]
    env.close()


def test_the_env_has_the_three_abilities():
    env = make("reach")
    assert isinstance(env, DeferredObservation)
    assert isinstance(env, Snapshot)
    assert isinstance(env, SelectsCameras)
    env.close()


# -- snapshots -----------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_a_restored_state_goes_on_to_the_bit(task):
    moves = actions(8)
    env, other = make(task), make(task)
    env.reset(seed=11)
    play(env, actions(6, seed=1))
    state = env.get_state()
    seen = env.observe()[STATE]
    expected = play(env, moves)
    env.set_state(state)
    assert np.array_equal(env.observe()[STATE], seen)
    assert np.array_equal(env.get_state(), state, equal_nan=True)
    assert np.array_equal(play(env, moves), expected)
    other.reset(seed=99)  # another layout: the state must bring its own
    other.set_state(state)
    assert np.array_equal(play(other, moves), expected)
    env.close()
    other.close()


def test_bin_picking_remembers_where_the_object_was_first_held():
    env = make("bin-picking")
    env.reset(seed=0)
    env.sim._target_to_obj_init = 0.25
    state = env.get_state()
    env.reset(seed=1)
    assert env.sim._target_to_obj_init is None
    env.set_state(state)
    assert env.sim._target_to_obj_init == 0.25
    env.close()


def test_a_state_of_the_wrong_size_is_refused():
    env = make("reach")
    env.reset(seed=0)
    with pytest.raises(EnvError, match="numbers"):
        env.set_state(np.zeros(3))
    env.close()


# -- images --------------------------------------------------------------------------------------


def test_without_cameras_nothing_is_rendered():
    env = make("reach")
    observation, _ = env.reset(seed=0)
    assert set(observation) == {STATE}
    assert set(env.facts) == {"model_sha256"}, "no renderer"
    assert env.notes == ()
    env.close()


def test_cameras_have_their_keys_and_only_those_in_use_are_rendered():
    env = make("reach", cameras=("corner2", "gripperPOV", "topview"), size=32, render="fast")
    keys = ("observation/image", "observation/wrist_image", "observation/topview_image")
    assert env.camera_keys == keys
    env.use_cameras(["observation/wrist_image"])
    observation, _ = env.reset(seed=0)
    assert set(observation) == {STATE, "observation/wrist_image"}
    assert env.observation_space.contains(observation)
    assert any("fast" in note for note in env.notes)
    with pytest.raises(ObservationError, match="topview_image"):
        env.use_cameras(["observation/side_image"])
    env.close()


@pytest.mark.slow
def test_images_are_upright_contiguous_bytes_and_the_same_after_a_restore():
    env = make("drawer-open", size=64, cameras=("corner2", "gripperPOV"))
    env.use_cameras(env.camera_keys)
    env.reset(seed=3)
    frames, states = [], []
    for move in actions(4):
        env.advance(move)
        frames.append(env.observe())
        states.append(env.get_state())
    env.reset(seed=8)
    for frame, state in zip(frames, states, strict=True):
        env.set_state(state)
        for key, value in env.observe().items():
            assert np.array_equal(value, frame[key]), key
    image = frames[0]["observation/image"]
    env.close()
    assert image.shape == (64, 64, 3)
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous
    assert not np.array_equal(frames[0]["observation/image"], frames[-1]["observation/image"])


def test_a_start_looks_the_same_in_line_and_restored():
    env = make("push", size=64, render="fast")
    env.use_cameras(env.camera_keys)
    first = env.reset(seed=3)[0]["observation/image"]
    state = env.get_state()
    env.reset(seed=4)
    env.set_state(state)
    again = env.observe()["observation/image"]
    env.close()
    assert np.array_equal(first, again)


@pytest.mark.slow
def test_people_may_be_given_cheaper_pictures_and_policies_the_same_as_before():
    env = make("push", size=48)
    env.use_cameras(env.camera_keys)
    full = env.reset(seed=0)[0]["observation/image"]
    env.use_quality("look")
    look = env.observe()["observation/image"]
    env.use_quality("full")
    again = env.observe()["observation/image"]
    env.close()
    assert np.array_equal(full, again)
    assert not np.array_equal(full, look)
    assert np.abs(full.astype(int) - look).mean() < 25, "the same scene, without shadows"


def test_exactly_the_cameras_that_hang_upside_down_are_turned():
    env = make("reach")
    env.reset(seed=0)
    model, data = env.sim.model, env.sim.data
    assert {model.camera(i).name for i in range(model.ncam)} == set(CAMERAS)
    for camera in CAMERAS:
        up = data.cam(camera).xmat.reshape(3, 3)[2, 1]
        assert (up < -0.1) == (camera in UPSIDE_DOWN), camera
    env.close()


@pytest.mark.slow
def test_a_full_image_is_the_one_that_metaworld_renders():
    """In a process of its own, since two OpenGL contexts in one process give wrong images."""
    code = """
import sys
import numpy as np
from hocket.workers.env import gl
from hocket.adapters.envs.metaworld import MetaWorld

env = MetaWorld("push", MetaWorld.Config(size=96)).make("push-v3")
env.reset(seed=0)
ours = env.step(np.full(4, 0.5, np.float32))[0]["observation/image"]
device = gl.choose_device()
sim = env.sim
env.free_renderer()
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer
import os
os.environ["MUJOCO_GL"] = device.backend
theirs = MujocoRenderer(sim.model, sim.data, width=96, height=96, camera_name="corner2")
image = theirs.render("rgb_array")[::-1, ::-1]
theirs.close()
env.close()
sys.exit(0 if np.array_equal(image, ours) else f"{np.abs(image.astype(int) - ours).max()}")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=100, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_model_is_compiled_once_and_is_the_same_to_the_bit(tmp_path, monkeypatch):
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    own = model_digest(ALL_V3_ENVIRONMENTS["reach-v3"]().model)
    assert model_digest(make("reach").sim.model) == own
    (kept,) = compiled.cache_folder().glob("*.mjb")
    whole, written = kept.read_bytes(), kept.stat().st_ino
    assert model_digest(make("reach").sim.model) == own
    assert kept.stat().st_ino == written, "read, not compiled and written again"
    kept.write_bytes(b"")
    assert model_digest(make("reach").sim.model) == own
    assert kept.read_bytes() == whole, "what cannot be read is compiled again"


def test_only_so_many_compiled_models_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled, "MOST_BYTES", 30 << 20)
    for task in ("reach", "push"):
        make(task)
    (model,) = compiled.cache_folder().glob("*.mjb")
    assert {path.stem.partition(".")[0] for path in compiled.cache_folder().iterdir()} == {
        model.stem
    }


@pytest.mark.parametrize("layout", ["own", "lerobot"])
def test_the_digest_of_a_model_is_made_once_for_each_layout(tmp_path, monkeypatch, layout):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    env = make("reach", layout=layout)
    expected = model_digest(env.sim.model)
    assert env.facts["model_sha256"] == expected
    monkeypatch.setattr(compiled, "model_digest", lambda _: "made again")
    assert make("reach", layout=layout).facts["model_sha256"] == expected
    (kept,) = compiled.cache_folder().glob("*.sha256")
    kept.write_text("cut off")
    assert make("reach", layout=layout).facts["model_sha256"] == "made again"
