"""The CPU of a small job without cameras: MT10 by `hocket eval`, against a plain loop of 25 lines.

Both run the same trials with the same policy in fresh processes, from start to exit, one after the
other, several times; seconds of CPU are of all their processes. The plain loop has MetaWorld's
own envs, one after another in one process, and keeps nothing but successes. hocket's first run here
finds no compiled models and is not counted, nor is the plain loop before it; all others find those
of the first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

LIMIT = 1.1
PLAIN = """
import pickle, sys
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.types import Task
from hocket.adapters.policies.reference import Reference, features
starts = np.load(sys.argv[1])
networks = Reference("", Reference.Config())._tasks
successes = steps = 0
for task in starts.files:
    env = ALL_V3_ENVIRONMENTS[task]()
    for start in starts[task]:
        data = dict(env_cls=type(env), rand_vec=start, partially_observable=False)
        env.set_task(Task(env_name=task, data=pickle.dumps(data)))
        state, _ = env.reset()
        truncated = success = False
        while not truncated and not success:
            for action in networks[task].answer(features(state[None])[0]):
                state, _, _, truncated, info = env.step(action)
                steps += 1
                success = bool(info["success"])
                if truncated or success:
                    break
        successes += success
print(successes, steps)
"""


def save_starts(file: Path, episodes: int) -> None:
    """The layouts that hocket gives these trials, so that both sides run the same."""
    from hocket.adapters.envs.metaworld import MT10, MetaWorld

    suite, starts = MetaWorld("mt10", MetaWorld.Config()), {}
    for task in MT10:
        env = suite.make(task)
        starts[task] = np.stack([env._draw(seed) for seed in range(episodes)])
        env.close()
    np.savez(file, **starts)


def timed(words: list[str], folder: Path) -> tuple[float, float, str]:
    """Seconds of CPU, of wall time, and the last line of its output."""
    variables = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # nobody compiles a package at every start
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(
        words,
        cwd=folder,
        env=variables,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    after, wall = os.times(), time.perf_counter() - began
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return cpu, wall, (done.stdout.strip().splitlines() or [""])[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=5, help="of each task")
    parser.add_argument("--repeats", type=int, default=4, help="two or more")
    parser.add_argument("--lanes", default="auto")
    parser.add_argument("--flags", default="", help="more flags of hocket eval")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {"plain": [], "hocket": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_starts(folder / "starts.npz", options.episodes)
        ours = ["-m", "hocket", "eval", "--env", "metaworld:mt10", "--policy", "reference"]
        ours += ["--episodes", str(options.episodes), "--lanes", options.lanes, "--video", "none"]
        for repeat in range(options.repeats):
            cpu, wall, said = timed([sys.executable, "-c", PLAIN, "starts.npz"], folder)
            if repeat:
                found["plain"].append((cpu, wall))
            print(f"plain   {cpu:6.2f} CPU s {wall:6.2f} s  successes, steps: {said}", flush=True)
            words = [sys.executable, *ours, "--out", f"run{repeat}", *options.flags.split()]
            cpu, wall, said = timed(words, folder)
            note = "" if repeat else "  not counted: it compiled the models"
            if repeat:
                found["hocket"].append((cpu, wall))
            print(f"hocket  {cpu:6.2f} CPU s {wall:6.2f} s{note}", flush=True)
    ratios = [statistics.median(x[i] for x in found["hocket"]) for i in (0, 1)]
    ratios = [r / statistics.median(x[i] for x in found["plain"]) for i, r in enumerate(ratios)]
    print(f"hocket / plain: CPU {ratios[0]:.3f} (at most {LIMIT}), wall {ratios[1]:.3f}")
    return int(ratios[0] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
