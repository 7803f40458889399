"""LIBERO with a LeRobot policy: hocket against LeRobot's own evaluation loop.

    python benchmarks/libero.py --steps 64 --repeats 2

The same env class, the same four trials of a libero_spatial task, the same ACT policy (random
weights, two cameras of 128 px, 16 of 50 actions executed), one torch thread, soft resets, four
lanes. LeRobot's loop is its `rollout` on gymnasium's AsyncVectorEnv. Both are warm, and timed from
reset to the last step. Needs tools/make_venvs.sh and HOCKET_LIBERO_DATA.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from hocket import machine
from hocket.eval_config import EvalConfig
from hocket.fleets import Fleets
from hocket.planning import build_policy
from hocket.record.states import load_states
from hocket.run import Run

ROOT = Path(__file__).parents[1]
LIBERO = ROOT / "venvs" / "libero" / "bin" / "python"
LEROBOT = ROOT / "venvs" / "lerobot" / "bin" / "python"
TASK = "pick_up_the_black_bowl_next_to_the_plate_and_place_it_on_the_plate"
LANES, EXECUTED, SETTLING = 4, 16, 10
GOAL = slice(2, 5)
"""Where a state of the env has the controller's goal position: moved by every action."""


def peer(*arguments: str) -> Any:
    script = str(Path(__file__).with_name("libero_peer.py"))
    done = subprocess.run(
        [str(LEROBOT), script, *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


class Hocket:
    """Keeps workers and the policy's process warm from one repeat to the next."""

    def __init__(self, policy_folder: str, steps: int) -> None:
        self._plain = {
            "env": (f"libero:{TASK}",),
            "policy": f"lerobot:{policy_folder}",
            "episodes": LANES,
            "lanes": LANES,
            "max_steps": steps,
            "video": "none",
            "env_python": str(LIBERO),
            "policy_python": str(LEROBOT),
            "env_config": {"size": 128},
            "policy_config": {"threads": 1, "device": "cpu"},
        }
        self.fleets = Fleets()
        self.policy = build_policy(EvalConfig.from_plain(self._plain))
        self.run(seed=100, steps=EXECUTED)

    def run(self, *, seed: int = 0, steps: int | None = None) -> dict[str, Any]:
        plain = {**self._plain, "seed": seed}
        if steps is not None:
            plain["max_steps"] = steps
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            with Run.new(EvalConfig.from_plain(plain), Path(folder, "run")) as run:
                report = run.finish(policy=self.policy, fleets=self.fleets)
            seconds = time.perf_counter() - began
            files = sorted(Path(folder).glob("run/episodes/*/*/states.npz"))
            states = [load_states(file)[-1].tolist() for file in files]
        return {
            "seconds": report.throughput.wall_s,
            "with_report_s": seconds,
            "env_steps": report.throughput.env_steps,
            "returns": [episode.total_reward for episode in report.episodes],
            "states": states,
            "errors": report.overall.errors,
        }

    def close(self) -> None:
        self.policy.close()
        self.fleets.close()


def ceiling(times: dict[str, Any], cores: int, steps: int) -> float:
    """Env steps per second if cores did nothing but steps (those in which objects settle
    included), frames and inferences."""
    batch = max(times["infer_s"], key=int)
    infer_s = times["infer_s"][batch] / int(batch)
    chunks = -(-steps // EXECUTED)
    work_s = (SETTLING + steps) * times["step_s"] + chunks * (times["look_s"] + infer_s)
    return steps * cores / work_s


def worker_memory() -> list[float]:
    """MiB of each of hocket's worker processes, pages that several share counted in parts."""
    found = []
    for status in Path("/proc").glob("[0-9]*/smaps_rollup"):
        try:
            if "fleet/bootstrap.py" not in (status.parent / "cmdline").read_text():
                continue
            lines = status.read_text().splitlines()
        except OSError:
            continue
        found += [int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")]
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    flags = parser.parse_args()
    cores = machine.cores()
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(Path(scratch, "act"))
        peer("save", folder)
        times = peer("times", folder, TASK)
        limit = ceiling(times, cores, flags.steps)
        print(f"CPU seconds: {json.dumps(times)}; ceiling on {cores} cores {limit:.1f} steps/s")
        ours, theirs = [], []
        for repeat in range(flags.repeats):
            their = peer("rollout", folder, TASK, str(flags.steps))
            hocket = Hocket(folder, flags.steps)
            try:
                our = hocket.run()
                memory = worker_memory()
            finally:
                hocket.close()
            ends = np.abs(np.array(our["states"])[:, GOAL] - np.array(their["states"])[:, GOAL])
            ours.append(our["env_steps"] / our["seconds"])
            theirs.append(their["env_steps"] / their["seconds"])
            print(
                f"repeat {repeat}: LeRobot {theirs[-1]:.2f} steps/s, hocket {ours[-1]:.2f} steps/s "
                f"({ours[-1] / theirs[-1]:.2f}x); returns {their['returns']} and {our['returns']}; "
                f"last goals of the hand differ by {ends.max():.1e} m; workers' PSS "
                f"{[f'{m:.0f}' for m in memory]} MiB"
            )
        our_rate, their_rate = statistics.median(ours), statistics.median(theirs)
        print(
            f"median: {our_rate / their_rate:.2f}x LeRobot's loop (wanted 4.5), "
            f"{our_rate / limit:.2f} of the ceiling (wanted 0.75)"
        )


if __name__ == "__main__":
    main()
