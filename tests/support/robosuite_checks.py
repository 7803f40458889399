"""What is checked inside an interpreter that has robosuite 1.5: `python robosuite_checks.py CHECK`.

Each check is a function; it fails by raising. Run by test_robosuite.py.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from hocket.adapters.envs.robosuite import TASKS, Robosuite, RobosuiteConfig
from hocket.testing import check_suite


def make(task):
    return Robosuite(task, RobosuiteConfig(size=64, render="fast")).make(task)


def play(env, seed, steps=8):
    rng = np.random.default_rng(1)
    seen = [env.reset(seed=seed)[0]]
    for _ in range(steps):
        action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        env.advance(action)
        seen.append(env.observe())
    return seen


def is_same(one, other):
    return all((a[key] == b[key]).all() for a, b in zip(one, other, strict=True) for key in a)


def tasks_that_are_drawn_anew_conform():
    """Two of them at each run: every one compiles its scene some twenty times."""
    seed = int.from_bytes(os.urandom(4), "little")
    drawn = np.random.default_rng(seed).permutation(list(TASKS))[: int(os.environ.get("DRAWN", 2))]
    sys.stdout.write(f"Tasks were drawn with the seed {seed}.\n")
    suite = Robosuite("panda", RobosuiteConfig(size=64, render="fast"))
    for task in map(str, drawn):
        began = time.process_time()
        check_suite(suite, tasks=[task], seeds=(0, 7), steps=4)
        sys.stdout.write(f"{task}: {time.process_time() - began:.0f} s of CPU\n")


def every_task_starts_by_its_seed_and_steps_as_robosuites_own():
    import robosuite

    for task in TASKS:
        env = make(task)
        env.use_cameras(())
        ours, other, again = play(env, 3), play(env, 6), play(env, 3)
        assert is_same(ours, again), task
        assert len({tuple((k, a.shape, a.dtype) for k, a in seen.items()) for seen in ours}) == 1
        assert not is_same(ours[:1], other[:1]), task
        env.close()
        if task == "Wipe":  # It draws its table's height where it is made, but not at a reset.
            fresh = make(task)
            fresh.use_cameras(())
            assert is_same(ours, play(fresh, 3))
            continue
        own = robosuite.make(
            task,
            robots="Panda",
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            control_freq=20,
            ignore_done=True,
            seed=3,
        )
        # Not reset: its sampler of places would go on with random numbers that were drawn from.
        own.sim.forward()
        theirs = own._get_observations(force_update=True)
        rng = np.random.default_rng(1)
        for step, seen in enumerate(ours):
            for key, value in theirs.items():
                assert (seen[f"observation/{key}"] == value).all(), (task, step, key)
            action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
            theirs = own.step(action.astype(np.float64))[0]
        own.close()


def importing_loads_no_opengl():
    import hocket.adapters.envs.robosuite.env

    assert hocket.adapters.envs.robosuite.env.RobosuiteEnv
    assert "OpenGL" not in sys.modules


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    sys.stdout.write("done\n")
    sys.stdout.flush()
    os._exit(0)
