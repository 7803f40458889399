"""Cameras against gymnasium's AsyncVectorEnv in lockstep: MetaWorld pick-place, one 224 px camera,
chunks of 16 actions; the env, policy and loop of `engine/cameras.py`.

    python benchmarks/peers/async_vector_env.py [--trials 8] [--lanes 4] [--repeats 3] [--docs]

A step's CPU s and a frame's r, measured alone in the same run, say what there is to gain where all
but one of T frames are left out: (s + r) / (s + r / T). Exit code 1 below 0.95 of that.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
import cameras
from comparison import Comparison, Found, Stopwatch, median, outcome, run_hocket

WANTED = 0.95


def ours(options: argparse.Namespace) -> dict[str, Any]:
    return run_hocket(
        env=f"metaworld:{cameras.TASK}",
        policy=cameras.Looking(),
        episodes=options.trials,
        lanes=options.lanes,
        env_config={"size": cameras.PIXELS},
    )


def theirs(options: argparse.Namespace) -> dict[str, Any]:
    envs = gymnasium.vector.AsyncVectorEnv(
        [partial(cameras.make_env)] * options.lanes, context="spawn"
    )
    watch = Stopwatch()
    try:
        returns, steps = cameras.lockstep(envs, options.trials, watch.start)
        watch.stop()
    finally:
        envs.close()
    return outcome(watch, returns, steps)


def parts(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of CPU of a step and of a frame, in one process."""
    env = cameras.make_env().unwrapped
    env.reset(seed=0)
    action = env.action_space.sample()
    spent = {"step_s": 0.0, "frame_s": 0.0}
    for _ in range(options.frames):
        for key, work in (("step_s", partial(env.advance, action)), ("frame_s", env.observe)):
            began = time.process_time()
            work()
            spent[key] += time.process_time() - began
    env.close()
    return {key: seconds / options.frames for key, seconds in spent.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--frames", type=int, default=60, help="steps and frames timed alone")
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[threads] = "1"  # on both sides, in all processes
    found = Comparison(
        script=Path(__file__),
        what="MetaWorld pick-place, 224 px, 16 actions of each chunk",
        peer=f"AsyncVectorEnv of gymnasium {gymnasium.__version__}",
        sides={"parts": parts, "hocket": ours, "peer": theirs},
        note=of_bound,
    ).main(parser)
    return int(bool(found) and share(found) < WANTED)


def bound(found: Found) -> float:
    step_s, frame_s = median(found, "parts", "step_s"), median(found, "parts", "frame_s")
    return (step_s + frame_s) / (step_s + frame_s / cameras.CHUNK)


def share(found: Found) -> float:
    """What was gained of what there is to gain."""
    return median(found, "peer", "cpu_s") / median(found, "hocket", "cpu_s") / bound(found)


def of_bound(found: Found) -> str:
    step_ms, frame_ms = (1000 * median(found, "parts", key) for key in ("step_s", "frame_s"))
    return (
        f"; with s {step_ms:.2f} ms and r {frame_ms:.1f} ms {bound(found):.1f}x is to be gained, "
        f"and {share(found):.2f} of that was (wanted: {WANTED})"
    )


if __name__ == "__main__":
    sys.exit(main())
