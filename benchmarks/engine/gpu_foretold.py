"""What `hocket plan` predicts of one GPU that renders and infers, told before the run.

    python benchmarks/engine/gpu_foretold.py [--parts eval collect train] [--json FILE]

First the parts are measured: frames with `--env.render full` and `fast`, alone and beside the
policy; the seconds of the policy (of pi0's size, see one_gpu.py) by its rows; chunks, resets and
the lengths of the episodes without cameras. `hocket plan` tells of these alone what the row of
one_gpu.py will give: a batch takes the GPU as long as its rows and their frames do. That is
printed, and only then the row is run. At last `hocket collect` and `hocket train` with images run
in turns with `full` and `fast`. `--tiny` tries it all on a CPU, with a policy that is none; its
predictions mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing as mp
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hocket
from hocket.core import events
from hocket.core.data import Batch
from hocket.engine.scheduling.model import ChunkWork, plan
from hocket.system import machine
from one_gpu import CAMERAS, CONFIG, ENV, Large, make_env, row, run_hocket

QUALITIES = ("full", "fast")
BESIDE_ROWS, BESIDE_PROCESSES = 16, 4
"""A batch beside which frames are drawn, and by how many processes: about as many lanes of 32 look
at once where frames take half of the GPU."""


@dataclasses.dataclass(kw_only=True)
class Frames:
    """What a frame costs."""

    alone_s: float
    context_s: float
    """Of a new renderer, beyond its first frames: a worker makes one for each task it goes to."""
    many_s: float
    """Of several processes: the seconds of all for each frame."""
    beside_s: float = 0.0
    """Of the GPU, while the policy infers there too."""


def _draw(render: str, worker: int, go: Any, stop: Any, told: Any) -> None:
    """Draw frames until told to stop; tells how many, in how many seconds, and how long it took to
    draw those of one look with a new renderer."""
    env = make_env("reach-v3", worker, render).unwrapped
    env.use_cameras(())
    env.reset(seed=worker)
    env.use_cameras(tuple(CAMERAS))
    env.observe()
    env.free_renderer()
    began = time.perf_counter()
    env.observe()
    again_s = time.perf_counter() - began
    for _ in range(3):
        env.observe()
    go.wait(120)
    frames, began = 0, time.perf_counter()
    while not stop.is_set():
        env.observe()
        frames += len(CAMERAS)
    told.put((frames, time.perf_counter() - began, again_s))
    env.close()


def draw(render: str, processes: int, work: Callable[[], Any]) -> tuple[float, float, float]:
    """Frames a second of so many processes while `work` is done, seconds of a frame of one of them,
    and of a look with a new renderer."""
    context = mp.get_context("spawn")
    go, stop, told = context.Barrier(processes + 1), context.Event(), context.Queue()
    all_of_them = [
        context.Process(target=_draw, args=(render, n, go, stop, told)) for n in range(processes)
    ]
    for one in all_of_them:
        one.start()
    go.wait(120)
    work()
    stop.set()
    found = [told.get(timeout=120) for _ in all_of_them]
    for one in all_of_them:
        one.join()
    rate = sum(frames / seconds for frames, seconds, _ in found)
    return rate, processes / rate, statistics.median(again for _, _, again in found)


def batch_of(size: int) -> Batch:
    noise = np.random.default_rng(0)
    shape = (size, 224, 224, 3)
    arrays: dict[str, Any] = {key: noise.integers(0, 256, shape, np.uint8) for key in CAMERAS}
    arrays["observation/state"] = np.zeros((size, 39))
    rows = tuple(row("reach-v3", seed, 0) for seed in range(size))
    return Batch(arrays=arrays, rows=rows)


def time_policy(policy: Large, seconds: float) -> dict[int, float]:
    """Seconds of a batch, by its rows."""
    found = {}
    for size in policy.spec.batch_sizes:
        batch = batch_of(size)
        policy.infer(batch)
        took, until = [], time.perf_counter() + seconds
        while len(took) < 3 or time.perf_counter() < until:
            began = time.perf_counter()
            policy.infer(batch)
            took.append(time.perf_counter() - began)
        found[size] = statistics.median(took)
    return found


def time_frames(policy: Large, latency: dict[int, float], render: str, seconds: float) -> Frames:
    def rest() -> None:
        time.sleep(seconds)

    _, alone_s, again_s = draw(render, 1, rest)
    many, _, _ = draw(render, BESIDE_PROCESSES, rest)
    size = max(one for one in policy.spec.batch_sizes if one <= BESIDE_ROWS)
    batch, done, took = batch_of(size), [0], [0.0]

    def infer() -> None:
        began = time.perf_counter()
        while time.perf_counter() < began + 1.5 * seconds:
            policy.infer(batch)
            done[0] += size
        took[0] = time.perf_counter() - began

    rate, _, _ = draw(render, BESIDE_PROCESSES, infer)
    # What the policy's rows leave of the GPU's time is what the frames beside them take.
    left = 1.0 - done[0] / took[0] * latency[size] / size
    print(
        f"{render}: a frame takes {1e3 * alone_s:.2f} ms in one process, {1e3 / many:.2f} ms of "
        f"{BESIDE_PROCESSES} processes; beside batches of {size} these draw {rate:.0f} frames/s "
        f"while the policy infers {done[0] / took[0]:.0f} rows/s; a new renderer takes "
        f"{1e3 * (again_s - len(CAMERAS) * alone_s):.0f} ms",
        flush=True,
    )
    return Frames(
        alone_s=alone_s,
        context_s=max(0.0, again_s - len(CAMERAS) * alone_s),
        many_s=1 / many,
        beside_s=max(left / rate, 0.0),
    )


class Told:
    """Counts how long resets took, how many followed an episode of another task, and how long it
    took until all lanes had begun."""

    def __init__(self) -> None:
        self.reset_s: list[float] = []
        self.changes: list[bool] = []
        self.first_ready: dict[int, float] = {}
        self._began: dict[int, float] = {}
        self._task: dict[int, str] = {}

    def on(self, event: events.Event) -> None:
        if isinstance(event, events.AttemptsBegan):
            self._began.update(dict.fromkeys(event.lanes, event.time))
        elif isinstance(event, events.LanesReady):
            for lane, trial in zip(event.lanes, event.trials, strict=True):
                if lane in self.first_ready:
                    self.reset_s.append(event.time - self._began[lane])
                    self.changes.append(self._task[lane] != trial.task)
                self.first_ready.setdefault(lane, event.time)
                self._task[lane] = trial.task

    def close(self) -> None: ...


@dataclasses.dataclass(kw_only=True)
class Episodes:
    """What the episodes are made of, where nobody looks."""

    decisions: list[int]
    """Of each, in planned order."""
    steps: int
    execute_s: float
    """Of a chunk."""
    reset_s: float
    changes: float
    """The share of episodes that follow one of another task in their lane."""


def time_episodes(episodes: int) -> Episodes:
    lanes, told = machine.cores(), Told()
    # The first run compiles the models, which later ones find.
    hocket.evaluate(env=ENV, policy="reference", episodes=1, lanes=lanes)
    report = hocket.evaluate(
        env=ENV, policy="reference", episodes=episodes, lanes=lanes, readers=[told]
    )
    chunk, speed = 16, report.throughput
    found = Episodes(
        decisions=[-(-episode.steps // chunk) for episode in report.episodes],
        steps=sum(episode.steps for episode in report.episodes),
        execute_s=speed.worked_s / speed.chunks,
        reset_s=statistics.mean(told.reset_s or [0.0]),
        changes=statistics.mean(told.changes or [0.0]),
    )
    print(
        f"without cameras, {lanes} lanes: a chunk takes {1e3 * found.execute_s:.1f} ms, a reset "
        f"{1e3 * found.reset_s:.0f} ms ({100 * found.changes:.0f} % after another task); "
        f"{len(found.decisions)} episodes of "
        f"{statistics.mean(found.decisions):.2f} decisions and {found.steps} steps in all",
        flush=True,
    )
    return found


def time_starts(policy: Large, render: str, lanes: int) -> list[float]:
    """Seconds after the first at which each lane begins with cameras."""
    told = Told()
    config: dict[str, Any] = {**CONFIG, "render": render, "max_steps": 16}
    episodes = -(-lanes // 10)
    hocket.evaluate(
        env=ENV, policy=policy, episodes=episodes, lanes=lanes, env_config=config, readers=[told]
    )
    ready = sorted(told.first_ready.values())
    print(f"{lanes} lanes have begun with cameras within {ready[-1] - ready[0]:.2f} s", flush=True)
    return [one - ready[0] for one in ready]


def foretell(
    latency: dict[int, float], frames: Frames, found: Episodes, starts: Sequence[float]
) -> dict[str, float]:
    """What `hocket plan` expects of this row: of all lanes, and as they run out of trials."""
    lanes, looks_s = len(starts), len(CAMERAS) * frames.beside_s
    sizes = sorted(latency)

    def shared_s(size: int) -> float:
        """A batch on the GPU that drew its rows' frames too."""
        padded = next((fixed for fixed in sizes if fixed >= size), sizes[-1])
        return latency[padded] + size * looks_s

    points = ",".join(f"{size}={1e3 * shared_s(size):.2f}" for size in range(1, sizes[-1] + 1))
    begin_s = found.reset_s + found.changes * frames.context_s
    execute_s = found.execute_s + begin_s / statistics.mean(found.decisions)
    work = ChunkWork(cores=machine.cores(), execute_s=execute_s, max_batch=sizes[-1])
    flags = ["--lanes", str(lanes), "--cores", str(work.cores), "--max-batch", str(sizes[-1])]
    flags += ["--execute-s", f"{execute_s:.5f}", "--latency", points, "--actions"]
    flags += [f"{found.steps / sum(found.decisions):.3f}"]
    print(f"hocket plan {' '.join(flags)}", flush=True)
    subprocess.run([sys.executable, "-m", "hocket", "plan", *flags], check=True)
    rates = {
        expected.lanes: expected.chunks_per_s
        for expected in plan(range(1, lanes + 1), work, shared_s, actions_per_chunk=1)
    }
    # Lanes that have begun share the rate equally; each takes the next trial when its own ends.
    wall_s, left = 0.0, list[float]()
    waiting, trials = list(reversed(starts)), list(reversed(found.decisions))
    while left or waiting:
        each = rates[len(left)] / len(left) if left else 0.0
        ends_s = min(left) / each if left else math.inf
        step_s = min(ends_s, waiting[-1] - wall_s if waiting else math.inf)
        wall_s += step_s
        going = [decisions - each * step_s for decisions in left]
        left = [decisions for decisions in going if decisions > 1e-9]
        ended = len(going) - len(left)
        while waiting and waiting[-1] <= wall_s + 1e-9:
            waiting.pop()
            ended += 1
        left += [float(trials.pop()) for _ in range(min(ended, len(trials)))]
    return {
        "steady_decisions_per_s": rates[lanes],
        "wall_s": wall_s,
        "decisions_per_s": sum(found.decisions) / wall_s,
        "steps_per_s": found.steps / wall_s,
    }


def timed_verb(arguments: Sequence[str]) -> dict[str, float]:
    """Seconds of a verb in a process of its own, and of CPU in it and in those that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "hocket", *arguments], capture_output=True, text=True, check=False
    )
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"hocket {' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": wall_s, "cpu_s": cpu_s}


def in_turns(verb: Sequence[str], out: Callable[[Path], Sequence[str]], repeats: int) -> Any:
    """Both qualities one after the other, so often."""
    found: dict[str, list[dict[str, float]]] = {render: [] for render in QUALITIES}
    for _ in range(repeats):
        for render in QUALITIES:
            with tempfile.TemporaryDirectory() as folder:
                flags = ["--env.render", render, *out(Path(folder) / "made")]
                found[render].append(timed_verb([*verb, *flags]))
    for kind in ("wall_s", "cpu_s"):
        of = {render: [one[kind] for one in found[render]] for render in QUALITIES}
        full, fast = (statistics.median(of[render]) for render in QUALITIES)
        print(
            f"{verb[0]}, {kind}: full {full:.1f}, fast {fast:.1f}, {fast / full:.2f} of it "
            f"(all: {', '.join(f'{a:.1f} / {b:.1f}' for a, b in zip(*of.values(), strict=True))})",
            flush=True,
        )
    return found


def tiny_policy(max_batch: int) -> Large:
    import torch

    class Tiny(torch.nn.Module):
        def forward(self, observation: dict[str, Any]) -> Any:
            state = observation["observation/state"]
            return torch.zeros(len(state), 50, 32)

    return Large(max_batch, module=Tiny())


def policy_of(flags: argparse.Namespace) -> Large:
    if flags.tiny:
        return tiny_policy(max(flags.lanes))
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("This machine's torch finds no GPU: add --tiny to try the script alone.")
    return Large(max(flags.lanes))


def evaluate(flags: argparse.Namespace, told: dict[str, Any]) -> None:
    policy = policy_of(flags)
    latency = time_policy(policy, flags.seconds / 4)
    shown = ", ".join(f"{size}: {1e3 * seconds:.0f}" for size, seconds in latency.items())
    print(f"the policy takes, by its rows, ms: {shown}", flush=True)
    found = time_episodes(flags.episodes)
    told["parts"] = {"latency": latency, "episodes": dataclasses.asdict(found)}
    for render in flags.render:
        frames = time_frames(policy, latency, render, flags.seconds)
        told["parts"][render] = dataclasses.asdict(frames)
        for lanes in flags.lanes:
            starts = time_starts(policy, render, lanes)
            expected = foretell(latency, frames, found, starts)
            looks_ms = 1e3 * len(CAMERAS) * frames.beside_s
            print(
                f"FORETOLD, {render}, {lanes} lanes: {expected['steps_per_s']:.0f} env steps/s, "
                f"{expected['decisions_per_s']:.1f} decisions/s, {expected['wall_s']:.1f} s (of "
                f"all lanes {expected['steady_decisions_per_s']:.1f} decisions/s; a decision's "
                f"frames take {looks_ms:.2f} ms of the GPU)",
                flush=True,
            )
            seen = run_hocket(policy, flags.episodes, lanes, render).to_json()
            ratio = expected["steps_per_s"] / seen["steps_per_s"]
            print(
                f"SEEN, {render}, {lanes} lanes: {seen['steps_per_s']:.0f} env steps/s, "
                f"{seen['decisions_per_s']:.1f} decisions/s, {seen['wall_s']:.1f} s, "
                f"{seen['successes']:.0f} of {seen['episodes']:.0f} succeeded: foretold / seen "
                f"{ratio:.3f}",
                flush=True,
            )
            told[f"{render}, {lanes} lanes"] = {"foretold": expected, "seen": seen, "ratio": ratio}


def collect(flags: argparse.Namespace, told: dict[str, Any]) -> None:
    verb = ["collect", "--env", ENV, "--policy", "reference", "--lanes", str(flags.workers)]
    verb += ["--episodes", str(flags.collect_episodes), "--failures"]
    told["collect"] = in_turns(verb, lambda out: [str(out)], flags.repeats)


def train(flags: argparse.Namespace, told: dict[str, Any]) -> None:
    verb = ["train", "--env", "metaworld:reach-v3", "--policy", "actor", "--policy.images"]
    verb += ["--env.size", "84", "--env.max-steps", "150", "--lanes", str(flags.workers)]
    verb += ["--steps", str(flags.train_steps), "--eval-every", "0", "--batch", str(flags.workers)]
    if not flags.tiny:
        verb += ["--device", "cuda", "--collect-device", "cuda"]
    told["train"] = in_turns(verb, lambda out: ["--out", str(out)], flags.repeats)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = {"eval": evaluate, "collect": collect, "train": train}
    parser.add_argument("--parts", nargs="+", choices=tuple(steps), default=list(steps))
    parser.add_argument("--episodes", type=int, default=40, help="of each of the ten tasks")
    parser.add_argument("--lanes", type=int, nargs="+", default=[32])
    parser.add_argument("--render", nargs="+", choices=QUALITIES, default=list(QUALITIES))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each part's measurement")
    parser.add_argument("--collect-episodes", type=int, default=3, help="of each of the ten tasks")
    parser.add_argument("--train-steps", type=int, default=12_000)
    parser.add_argument("--repeats", type=int, default=2, help="of collect and train, each")
    parser.add_argument("--workers", type=int, default=machine.cores(), help="of collect and train")
    parser.add_argument("--tiny", action="store_true", help="a policy that is none, on a CPU")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[threads] = "1"  # In the processes that draw, as in hocket's workers.
    told: dict[str, Any] = {}
    for part in flags.parts:
        began = time.perf_counter()
        steps[part](flags, told)
        print(f"{part} took {time.perf_counter() - began:.0f} s in all", flush=True)
        if flags.json:
            flags.json.write_text(json.dumps(told, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
