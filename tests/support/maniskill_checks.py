"""What is checked inside an interpreter that has ManiSkill: `python maniskill_checks.py CHECK`.

Each check is a function; it fails by raising. Run by test_maniskill_real.py.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import numpy as np

from hocket.adapters.envs.gym import Gym
from hocket.adapters.envs.maniskill import (
    ON_CPU,
    STARTS,
    WIDOWX,
    ManiSkill,
    ManiSkillConfig,
    Simpler,
    SimplerConfig,
)
from hocket.adapters.envs.maniskill.env import make_scenes
from hocket.adapters.envs.maniskill.rows import ManiSkillRows
from hocket.errors import ConfigError, EnvError, UnknownNameError
from hocket.testing import check_suite
from support.simpler_picker import act

STACK = "StackGreenCubeOnYellowCubeBakedTexInScene-v1"
CARROT = "PutCarrotOnPlateInScene-v1"


def pick_cube(**settings):
    config = ManiSkillConfig(sim_backend=ON_CPU, **settings)
    return ManiSkill("PickCube-v1", config).make("PickCube-v1")


def simpler(task):
    env = Simpler(task, SimplerConfig()).make(task)
    env.use_cameras(())
    return env


def chunk(seen):
    keys = ("hand", "source", "target", "state")
    hand, source, target, state = (seen[f"observation/{key}"] for key in keys)
    return act(hand, source, target, state[7])


def play(env, seed, steps):
    """An episode of the policy that picks: its states, and what was told last."""
    seen, _ = env.reset(seed=seed)
    states, told = [env.get_state()], {}
    while len(states) <= steps:
        for action in chunk(seen):
            _, _, _, told = env.advance(action.astype(np.float32))
            states.append(env.get_state())
        seen = env.observe()
    return np.array(states), told


def numbers_conform():
    suite = ManiSkill("PickCube-v1", ManiSkillConfig(sim_backend=ON_CPU))
    check_suite(suite, seeds=(0, 7), steps=9)


def pictures_conform():
    check_suite(Simpler(CARROT, SimplerConfig()), seeds=(0, 7), steps=5)


def tasks_are_what_the_port_says():
    for info in Simpler("widowx", SimplerConfig()).tasks():
        env = simpler(info.name)
        assert (env.prompt, env.max_steps) == (info.prompt, info.max_steps), info
        assert (env.control_rate, info.success_rule) == (info.control_rate, "final")
        assert "port" in Simpler.facts["simulator"]
        env.close()
    assert [WIDOWX[name][1] for name in sorted(WIDOWX)] == [60, 120, 60, 60]


def a_start_does_not_depend_on_the_episode_before():
    """With resets of the port's own the eggplant of start 5 lies up to 0.2 m elsewhere: it settles
    while the robot is still on its way to where the last episode sent it."""
    env, rng = simpler("PutEggplantInBasketScene-v1"), np.random.default_rng(0)
    scale = np.array([0.05] * 3 + [0.2] * 3 + [1.0])
    for seed in (0, 5):
        starts = []
        for _ in range(4):
            for _ in range(15):
                env.advance((rng.uniform(-1, 1, 7) * scale).astype(np.float32))
            env.reset(seed=seed)
            starts.append(env.get_state())
        assert (np.array(starts) == starts[0]).all()
    first, _ = play(env, 2, 10)
    fresh, _ = play(simpler("PutEggplantInBasketScene-v1"), 2, 10)
    assert (first == fresh).all()


def nothing_is_grasped_at_a_start():
    env = pick_cube(obs_mode="state_dict", control_mode="pd_ee_delta_pos")
    for seed in range(2):
        env.reset(seed=seed)
        grasp(env)
        assert env.observe()["observation/extra/is_grasped"]
        assert not env.reset(seed=seed)[0]["observation/extra/is_grasped"]


def grasp(env, row=0):
    """Close PickCube's gripper around the cube; return the actions that it took."""
    real, actions = env._env, []
    for step in range(24):
        tcp = real.agent.tcp.pose.p[row].numpy()
        to_cube = real.cube.pose.p[row].numpy() - tcp
        action = np.zeros(real.single_action_space.shape, np.float32)
        action[:3] = np.clip(to_cube / 0.1, -1, 1) if step < 16 else 0.0
        if step < 8:
            action[2] = max(action[2], 0.0)
        action[-1] = 1.0 if step < 16 else -1.0
        actions.append(action)
        env.advance(action) if hasattr(env, "advance") else real.step(action)
    return np.array(actions)


def starts_count_round():
    env = simpler(STACK)
    first = env.reset(seed=3)[0]["observation/target"]
    assert (env.reset(seed=3 + STARTS)[0]["observation/target"] == first).all()
    assert not (env.reset(seed=4)[0]["observation/target"] == first).all()


def putting_back_changes_a_grasp():
    made = make_scenes(
        "PickCube-v1",
        1,
        {"obs_mode": "state", "sim_backend": ON_CPU, "control_mode": "pd_ee_delta_pos"},
    )
    rows = ManiSkillRows(made, "PickCube-v1", is_exact=False)
    rows.reset(np.array([0]), ["PickCube-v1"], [0])
    actions = grasp(rows)
    assert bool(rows._env.agent.is_grasping(rows._env.cube)[0])
    held = np.zeros((60, 4), np.float32)
    held[:, 3] = -1.0
    drift = rows.measure_drift(np.concatenate([actions, held]))
    sys.stdout.write(f"in a grasp: {drift:.2g}; {rows.facts['change_by_waiting']}\n")
    assert 1e-6 < drift < 1.0


def controllers_wait_too():
    """A target that is added up does not run away, as it did by radians."""
    for mode in ("pd_joint_target_delta_pos", "pd_ee_target_delta_pose"):
        settings = {"obs_mode": "state", "sim_backend": ON_CPU, "control_mode": mode}
        rows = ManiSkillRows(make_scenes("PickCube-v1", 1, settings), "PickCube-v1", is_exact=True)
        rows.action_space.seed(0)
        actions = [rows.action_space.sample() for _ in range(40)]
        ids, ends = rows._ids([0]), []
        for waits in (False, True):
            rows.reset(np.array([0]), ["PickCube-v1"], [0])
            for action in actions:
                kept = rows._controllers.take(ids)
                if waits:
                    rows._env.agent.controller.set_action(rows._torch.ones(1, len(action)))
                    rows._controllers.give_back(ids, kept)
                rows._env.step(action)
            ends.append(rows._places())
        assert (ends[0] == ends[1]).all(), mode


def told(error, make):
    """What this error says."""
    found = None
    try:
        make()
    except error as exc:
        found = str(exc)
    assert found is not None, f"no {error.__name__} was raised"
    return found


def mistakes_are_told():
    task = "mani_skill.envs:PickCube-v1"
    assert "video" in told(ConfigError, lambda: pick_cube(obs_mode="video"))
    kwargs = '{"robot_uids": "no-robot"}'
    assert "no-robot" in told(ConfigError, lambda: pick_cube(kwargs=kwargs))
    assert "No-v1" in told(UnknownNameError, lambda: make_scenes("No-v1", 1, {}))
    assert "download_asset" in told(EnvError, lambda: make_scenes("PickSingleYCB-v1", 1, {}))
    said = told(ConfigError, lambda: Gym(task, Gym.Config()).make(task))
    assert "maniskill:PickCube-v1" in said


def without_vulkan_it_is_told_what_is_missing():
    os.environ["VK_ICD_FILENAMES"] = "/nowhere.json"
    said = told(EnvError, pick_cube)
    assert "hocket doctor" in said, said
    assert "Vulkan" in said, said


def _plain_loop(target, count=STARTS):
    """SimplerEnv's protocol, in a loop over ManiSkill's own env: the first starts of each task."""
    import gymnasium
    import torch

    told, states = {}, {}
    for info in Simpler("widowx", SimplerConfig()).tasks():
        made = make_scenes(info.name, 1, {"obs_mode": "rgb+segmentation", "sim_backend": ON_CPU})
        assert isinstance(made, gymnasium.Env)
        look = simpler(info.name)
        look._env.close()
        look._env = real = made.unwrapped
        draws, real._get_obs_sensor_data = real._get_obs_sensor_data, lambda *_, **__: {}
        for start in range(int(str(count))):
            options = {"episode_id": torch.tensor([start]), "reconfigure": True}
            made.reset(seed=start, options=options)
            kept, is_over, images = [real.get_state()[0].numpy()], False, []
            while not is_over:
                if start == 0:
                    real._get_obs_sensor_data = draws
                    seen = real.get_obs({})["sensor_data"]["3rd_view_camera"]["rgb"][0].numpy()
                    real._get_obs_sensor_data = lambda *_, **__: {}
                    images.append(seen)
                for action in chunk(look.observe()):
                    _, _, _, truncated, last = made.step(action.astype(np.float32))
                    kept.append(real.get_state()[0].numpy())
                is_over = bool(truncated)
            states[f"{info.name}-{start}"] = np.array(kept, np.float64)
            told[f"{info.name}-{start}"] = bool(last["success"])
            if images:
                states[f"{info.name}-images"] = np.array(images)
        made.close()
    np.savez(target, **states, **{f"success-{name}": won for name, won in told.items()})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    globals()[sys.argv[1]](*map(Path, sys.argv[2:]))
    sys.stdout.write("done\n")
    sys.stdout.flush()
    os._exit(0)
