"""LIBERO with a LeRobot policy: hocket against LeRobot's own evaluation loop.

    python benchmarks/libero/evaluation.py --steps 220 --repeats 1

The same env class, the same four trials of a libero_spatial task (220 steps is that suite's limit),
the same ACT policy (random weights, two cameras of 128 px, 16 of 50 actions executed), one torch
thread, soft resets, four lanes. LeRobot's loop is its `rollout` on gymnasium's AsyncVectorEnv. Both
are warm, and timed from the beginning of resets to the end of the last step; hocket's trial of
batch sizes, which a run does once, is left out and told. Needs `hocket venv libero lerobot` and
HOCKET_LIBERO_DATA.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.events import AttemptsBegan, BatchInferred, ChunksExecuted, Event
from hocket.records.step_rows import KeptStates
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.run import Run
from hocket.system import machine
from hocket.workers.lending import Fleets
from others import Others, worker_memory

ROOT = Path(__file__).parents[2]
LIBERO = ROOT / "venvs" / "libero" / "bin" / "python"
LEROBOT = ROOT / "venvs" / "lerobot" / "bin" / "python"
TASK = "pick_up_the_black_bowl_next_to_the_plate_and_place_it_on_the_plate"
LANES, EXECUTED = 4, 16
GOAL = slice(2, 5)
"""Where a state of the env has the controller's goal position: moved by every action."""


def peer(*arguments: str) -> Any:
    script = str(Path(__file__).with_name("peer.py"))
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


class Watch:
    """Times a run: from the first order to reset to the end of the last chunk."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._ready = self._inferred = self._ended = 0.0

    def on(self, event: Event) -> None:
        """Reader: look at the clock."""
        if isinstance(event, AttemptsBegan) and self._began is None:
            self._began = event.time
        elif isinstance(event, BatchInferred) and not self._inferred:
            self._ready, self._inferred = max(event.ready), event.began
        elif isinstance(event, ChunksExecuted):
            self._ended = event.time

    def close(self) -> None:
        """Reader: nothing to close."""

    @property
    def warming_s(self) -> float:
        """From the first observations to the first batch: the policy is tried in several sizes."""
        return self._inferred - self._ready

    @property
    def seconds(self) -> float:
        """Without warming up."""
        return self._ended - (self._began or 0.0) - self.warming_s


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
        self.policy = Assembly(EvalConfig.from_plain(self._plain)).policy()
        self.run(seed=100, steps=EXECUTED)

    def run(self, *, seed: int = 0, steps: int | None = None) -> dict[str, Any]:
        plain = {**self._plain, "seed": seed}
        if steps is not None:
            plain["max_steps"] = steps
        watch = Watch()
        with tempfile.TemporaryDirectory() as folder:
            with Run.new(EvalConfig.from_plain(plain), Path(folder, "run")) as run:
                report = run.finish(policy=self.policy, fleets=self.fleets, readers=[watch])
            kept = KeptStates(Path(folder, "run"))
            states = [kept.load(episode) for episode in report.episodes]
        return {
            "seconds": watch.seconds,
            "warming_s": watch.warming_s,
            "batches": report.throughput.batches,
            "env_steps": report.throughput.env_steps,
            "returns": [episode.total_reward for episode in report.episodes],
            "goals": [[some[EXECUTED, GOAL], some[-1, GOAL]] for some in states],
            "errors": report.overall.errors,
        }

    def close(self) -> None:
        self.policy.close()
        self.fleets.close()


def ceiling(times: dict[str, Any], cores: int, steps: int) -> float:
    """Env steps per second at most, whoever schedules them: cores do nothing but resets, steps,
    frames and inferences (in batches of the size that is cheapest for a row), and no lane's own
    work can be shortened."""
    chunks = -(-steps // EXECUTED)
    apart = chunks * times["look_s"] + times["reset_s"] + steps * times["step_s"]
    infer_s = {int(size): seconds for size, seconds in times["infer_s"].items()}
    work_s = LANES * (apart + chunks * min(s / size for size, s in infer_s.items()))
    alone_s = apart + chunks * infer_s[1]
    return LANES * steps / max(work_s / cores, alone_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--no-peer", action="store_true", help="hocket alone, against the ceiling")
    flags = parser.parse_args()
    cores = machine.cores()
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(Path(scratch, "act"))
        peer("save", folder)
        times = peer("times", folder, TASK, str(flags.steps))
        limit = ceiling(times, cores, flags.steps)
        print(f"CPU seconds: {json.dumps(times)}; ceiling on {cores} cores {limit:.1f} steps/s")
        ours, theirs = [], []
        for repeat in range(flags.repeats):
            our = run_hocket(folder, flags.steps)
            ours.append(our["env_steps"] / our["seconds"])
            print(
                f"repeat {repeat}: hocket {ours[-1]:.2f} steps/s ({our['env_steps']} steps in "
                f"{our['seconds']:.1f} s, {our['batches']} batches; {our['warming_s']:.1f} s of "
                f"trying batch sizes not counted), {ours[-1] / limit:.2f} of the ceiling; others "
                f"took {our['others']:.0%} of the cores; workers' PSS {our['memory']} MiB"
            )
            if flags.no_peer:
                continue
            their = peer("rollout", folder, TASK, str(flags.steps))
            theirs.append(their["env_steps"] / their["seconds"])
            apart = np.abs(np.array(our["goals"]) - np.array(their["goals"])).max(axis=(0, 2))
            print(
                f"repeat {repeat}: LeRobot {theirs[-1]:.2f} steps/s ({their['env_steps']} steps in "
                f"{their['seconds']:.1f} s), hocket {ours[-1] / theirs[-1]:.2f}x; others took "
                f"{their['others']:.0%} of the cores; returns {their['returns']} and "
                f"{our['returns']}; the hand's goals differ by {apart[0]:.0e} m after the first "
                f"chunk, by {apart[1]:.0e} m at the end"
            )
        our_rate = statistics.median(ours)
        print(f"median: {our_rate / limit:.2f} of the ceiling (wanted 0.75)")
        if theirs:
            print(f"median: {our_rate / statistics.median(theirs):.2f}x LeRobot's (wanted 4.5)")


def run_hocket(folder: str, steps: int) -> dict[str, Any]:
    """One run on warm workers, with what it cost."""
    hocket = Hocket(folder, steps)
    try:
        others = Others()
        done = hocket.runs.run()
        return {
            **done,
            "others": others.share(),
            "memory": sorted(sizes["Pss"] >> 20 for sizes in worker_memory()),
        }
    finally:
        hocket.close()


if __name__ == "__main__":
    main()
