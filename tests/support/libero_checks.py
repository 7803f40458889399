"""What is checked inside an interpreter that has LIBERO: `python libero_checks.py CHECK`.

Each check is a function; it fails by raising. Run by test_libero.py.
"""

from __future__ import annotations

import os
import sys
import tempfile

import numpy as np

from hocket.adapters.envs.libero import Libero
from hocket.testing import check_env

GOAL = "open_the_middle_drawer_of_the_cabinet"
MILK = "pick_up_the_milk_and_place_it_in_the_basket"
STOVE = "turn_on_the_stove"
BOWL = "pick_up_the_black_bowl_on_the_ramekin_and_place_it_on_the_plate"
POT = "KITCHEN_SCENE3_turn_on_the_stove_and_put_the_moka_pot_on_it"
STATE = "observation/state"


def make(task, **config):
    return Libero(task, Libero.Config(size=64, **config)).make(task)


def moves(count, seed=5):
    actions = np.random.default_rng(seed).uniform(-1, 1, (count, 7)).astype(np.float32)
    actions[5:9, 3:6] = 0  # the controller then keeps its last goal of orientation
    return actions


def play(env, actions):
    rows = []
    for action in actions:
        reward, terminated, _, info = env.advance(action)
        sim = env.libero.sim.get_state().flatten()
        rows.append([reward, terminated, info["success"], *env.observe()[STATE], *sim])
    return np.array(rows)


def conforms():
    check_env(lambda: make(GOAL), seeds=(0, 1), steps=4)


def an_unchanged_variant_equals_its_task():
    """LIBERO's own env in the place of LIBERO-Plus', whose names of files say what is changed."""
    from hocket.adapters.envs.libero.data import find_data
    from hocket.adapters.envs.libero.plus import LiberoPlusConfig, Variant
    from hocket.adapters.envs.libero.variants import CleanEnv, VariantEnv

    data = find_data()
    with tempfile.TemporaryDirectory() as folder:
        paths = {"benchmark_root": data.assets.parent, "bddl_files": data.bddl_files}
        paths |= {"init_states": data.init_states, "assets": data.assets, "datasets": folder}
        with open(os.path.join(folder, "config.yaml"), "w") as file:
            file.writelines(f"{key}: {path}\n" for key, path in paths.items())
        os.environ["LIBERO_CONFIG_PATH"] = folder
        change = "_view_0_0_100_0_0_initstate_0"
        variants = [
            Variant(suite="libero_object", name=MILK + change, number=5, factor="x", level=3)
        ]
        config = LiberoPlusConfig(size=64, prompts="plain")
        env = VariantEnv(variants, config)  # chooses OpenGL, before anything of LIBERO's
        import libero.libero
        from libero.libero import envs

        libero.libero._assets_path_cache = str(data.assets)
        own = envs.OffScreenRenderEnv
        envs.OffScreenRenderEnv = lambda bddl_file_name, **size: own(
            bddl_file_name=bddl_file_name.replace(change, ""), **size
        )
        clean = CleanEnv(variants, config)
        seen, again = env.reset(seed=0)[0], clean.reset(seed=0)[0]
        for action in [None, *moves(12)]:
            if action is not None:
                (seen, *told), (again, *known) = env.step(action), clean.step(action)
                assert told[:3] == known[:3]
                assert told[3] == known[3] == {"success": False, "variant": 5, "level": 3}
            assert seen.keys() == again.keys() | {"prompt"}
            for key in seen.keys() - {"prompt"}:
                np.testing.assert_array_equal(seen[key], again[key], err_msg=key)
            assert (
                seen["prompt"] == again["prompt"] == "pick up the milk and place it in the basket"
            )


def a_soft_reset_equals_a_hard_one():
    for task in (GOAL, MILK):
        rows = []
        for hard in (False, True):
            env = make(task, hard_reset=hard)
            env.use_cameras(())
            for seed in (4, 9, 3):  # what happened before must leave nothing behind
                env.reset(seed=seed)
                rows.append(play(env, moves(12)))
            env.close()
        for soft, hard in zip(rows[:3], rows[3:], strict=True):
            np.testing.assert_array_equal(soft, hard)
        assert not np.array_equal(rows[0], rows[1])


def seeds_count_round_the_start_states():
    env = make(GOAL)
    env.use_cameras(())
    first, again, other = (env.reset(seed=seed)[0][STATE] for seed in (3, 53, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def states_can_be_given_to_another_env():
    here, there = make(STOVE), make(STOVE)
    here.reset(seed=0)
    play(here, moves(7))
    state, seen = here.get_state(), here.observe()
    there.set_state(state)
    # One env renders at a time: two GL contexts in a process give wrong images.
    here.free_renderer()
    for key, value in there.observe().items():
        np.testing.assert_array_equal(value, seen[key])
    here.use_cameras(())
    there.use_cameras(())
    np.testing.assert_array_equal(play(here, moves(6, 1)), play(there, moves(6, 1)))


def ticks_give_the_bits_of_robosuites_own():
    """In scenes of each suite, with objects in contact: everything derived three times a tick."""
    for task in (BOWL, GOAL, MILK, POT):
        rows = []
        for is_plain in (False, True):
            env = make(task)
            env.use_cameras(())
            if is_plain:
                env.libero.tick = lambda command, *, is_first, env=env: _plain_tick(
                    env.libero.sim, env.libero._pre_action, command, is_first
                )
            env.reset(seed=2)
            data = env.libero.sim.data._data
            rows.append(np.hstack([play(env, moves(20)), np.tile(data.sensordata, (20, 1))]))
            env.close()
        np.testing.assert_array_equal(*rows)


def _plain_tick(sim, act, command, is_first):
    sim.forward()
    act(command, is_first)
    before = sim.data._data.qpos.copy()
    sim.step()
    return before


def observing_changes_nothing():
    often, never = make(GOAL), make(GOAL)
    for env in (often, never):
        env.use_cameras(())
        env.reset(seed=1)
    for action in moves(12):
        often.advance(action)
        often.observe()
        never.advance(action)
    np.testing.assert_array_equal(often.get_state(), never.get_state())


def success_is_the_envs_own():
    env = make(STOVE)
    env.use_cameras(())
    env.reset(seed=0)
    assert not env.advance(moves(1)[0])[3]["success"]
    sim = env.libero.sim
    for joint in env.libero.get_object("flat_stove_1").joints:
        sim.data.set_joint_qpos(joint, 1.0)
    reward, terminated, _, info = env.advance(np.zeros(7))
    assert reward == 1.0
    assert terminated
    assert info["success"]


def liberos_own_env_gives_the_same():
    """Its states, and its images to the pixel, with its own renderer, in a process of its own."""
    os.environ.update(MUJOCO_GL="egl", PYOPENGL_PLATFORM="egl")
    data = os.environ["HOCKET_LIBERO_DATA"]
    with tempfile.TemporaryDirectory() as folder:
        own_file, hocket_file = os.path.join(folder, "a.npz"), os.path.join(folder, "b.npz")
        for target, play_it in ((own_file, _play_libero), (hocket_file, _play_hocket)):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    play_it(data, target)
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(pid, 0)[1] == 0
        own, ours = np.load(own_file), np.load(hocket_file)
        for key in own.files:
            np.testing.assert_array_equal(own[key], ours[key], err_msg=key)


def _play_libero(data, target):
    with tempfile.TemporaryDirectory() as folder:
        keys = {"benchmark_root": "", "bddl_files": "bddl_files", "init_states": ""}
        keys.update(datasets="datasets", assets="assets")
        with open(os.path.join(folder, "config.yaml"), "w") as file:
            file.writelines(f"{key}: {os.path.join(data, path)}\n" for key, path in keys.items())
        os.environ["LIBERO_CONFIG_PATH"] = folder
        import libero.libero

        libero.libero._assets_path_cache = os.path.join(data, "assets")
        from libero.libero.envs import OffScreenRenderEnv
        from robosuite.utils.transform_utils import quat2axisangle

        env = OffScreenRenderEnv(
            bddl_file_name=os.path.join(data, "bddl_files", "libero_object", f"{MILK}.bddl"),
            camera_heights=64,
            camera_widths=64,
        )
        env.seed(0)
        env.reset()
        env.set_init_state(
            np.load(os.path.join(data, "init_states.npz"))[f"libero_object/{MILK}"][3]
        )
        for _ in range(10):
            seen = env.step([0.0] * 6 + [-1.0])[0]
        images, wrist, states, sims = [], [], [], []
        for action in [None, *moves(12)]:
            if action is not None:
                seen = env.step(action.astype(np.float64))[0]
            images.append(seen["agentview_image"][::-1, ::-1])
            wrist.append(seen["robot0_eye_in_hand_image"][::-1, ::-1])
            turned = quat2axisangle(seen["robot0_eef_quat"].copy())
            states.append([*seen["robot0_eef_pos"], *turned, *seen["robot0_gripper_qpos"]])
            sims.append(env.env.sim.get_state().flatten())
        np.savez(target, images=images, wrist=wrist, states=states, sims=sims)


def _play_hocket(data, target):
    env = make(MILK)
    seen, _ = env.reset(seed=3)
    images, wrist, states, sims = [], [], [], []
    for action in [None, *moves(12)]:
        if action is not None:
            seen = env.step(action)[0]
        images.append(seen["observation/image"])
        wrist.append(seen["observation/wrist_image"])
        states.append(seen[STATE])
        sims.append(env.libero.sim.get_state().flatten())
    np.savez(target, images=images, wrist=wrist, states=states, sims=sims)


def importing_asks_nothing_and_loads_no_opengl():
    import hocket.adapters.envs.libero.env

    assert hocket.adapters.envs.libero.env.LiberoEnv
    assert "OpenGL" not in sys.modules


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    sys.stdout.write("done\n")
    sys.stdout.flush()
    os._exit(0)  # EGL complains when an interpreter ends with a context
