"""What a chunk and a short episode cost, against another commit: both sides in one process tree.

Each side is a checkout with its own interpreter. Runs of a few thousand chunks alternate between
the two, since other work on a machine changes what the same code costs; what is printed are medians
and the median ratio of neighbouring runs. Calls are what `sys.setprofile` sees on the engine's
thread, those of Python and of C.

    git worktree add ../before 1a2b3c4 && python benchmarks/engine/against_parent.py ../before
        [--python PATH] [--repeats 5] [--rows 'one lane']
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
CHUNK, CHUNKS = 16, 16_000
ROWS = {
    "chunk of 16 steps, 8 lanes": ("chunks", 8, 0.65),
    "chunk of 16 steps, 64 lanes": ("chunks", 64, 0.8),
    "chunk of 16 steps, 256 lanes": ("chunks", 256, 0.8),
    "chunk of 16 steps, one lane in this process": ("chunks", 1, 0.65),
    "episode of one chunk, one lane in this process": ("bare", 1, 0.8),
    "episode of one chunk, no folder": ("bare", 8, 1 / 3),
    "episode of one chunk, a folder that records nothing": ("none", 8, 1 / 3),
    "episode of one chunk, numbers recorded": ("numbers", 8, 1 / 3),
}
"""What is run, with how many lanes, and the wanted ratio: of the parent's CPU for chunks, of all
processes' for episodes."""
CALLS = {8: (4, 330), 64: (None, 50)}
"""By lanes: in a batch of four at most so many calls; of each chunk at most so many."""


class Meter:
    """A reader that takes the CPU of the engine's process, and of all below it, from the time on at
    which every lane has done its share until the last trial has begun, or the run has ended."""

    def __init__(self, *, counts_episodes: bool) -> None:
        self._counts_episodes = counts_episodes
        self._lanes = self._planned = self._begun = self.done = 0
        self._seen: set[int] = set()
        self._is_on = False
        self.own_s = self.all_s = 0.0

    def on(self, event: Any) -> None:
        name = type(event).__name__
        if name == "RunStarted":
            self._lanes, self._planned = event.lanes, len(event.trials)
        elif name == "AttemptsBegan":
            self._begun += len(event.lanes)
            if self._is_on and not self._counts_episodes and self._begun >= self._planned:
                self._switch()
        elif name == ("EpisodesEnded" if self._counts_episodes else "ChunksExecuted"):
            if self._is_on:
                self.done += len(event.lanes)
            elif len(self._seen) < self._lanes:
                self._seen.update(event.lanes)
                if len(self._seen) == self._lanes:
                    self._switch()
        elif name == "RunEnded" and self._is_on:
            self._switch()

    def _switch(self) -> None:
        sign = -1 if (is_on := not self._is_on) else 1
        self._is_on = is_on
        self.own_s += sign * time.process_time()
        self.all_s += sign * (time.process_time() + _below_s(os.getpid()))

    def close(self) -> None: ...


def _below_s(root: int) -> float:
    """Seconds of CPU of the living processes below this one."""
    parents: dict[int, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(entry)] = int(
                Path(f"/proc/{entry}/stat").read_text().rsplit(")")[1].split()[1]
            )
        except OSError:
            continue
    total = 0.0
    for process in parents:
        above = parents[process]
        while above > 1 and above != root:
            above = parents.get(above, 0)
        if above == root:
            try:
                total += int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9
            except OSError:
                continue
    return total


class Calls:
    """A reader that has the calls of the engine's thread counted from one batch to the next."""

    def __init__(self, infer: Any) -> None:
        self._infer = infer.__code__
        self.walks: list[tuple[int, int]] = []
        """Rows of a batch, and calls until the next."""
        self._rows = self._calls = self._batches = 0

    def on(self, event: Any) -> None:
        if type(event).__name__ == "BatchInferred":
            self._batches += 1
            if self._batches == 60:
                sys.setprofile(self._count)
        elif type(event).__name__ == "EpisodesEnded":
            sys.setprofile(None)

    def close(self) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_filename == __file__:
            return
        if event == "call" and frame.f_code is self._infer:
            if self._rows:
                self.walks.append((self._rows, self._calls))
            self._rows, self._calls = len(frame.f_locals["batch"].rows), 0
        self._calls += event in ("call", "c_call")


def measure(kind: str, lanes: int) -> dict[str, float]:
    """One side's figures; runs in that side's interpreter."""
    sys.path.insert(0, str(HERE))
    import hocket
    from nothing import LENGTH, NoPolicy

    is_long = kind in ("chunks", "calls")
    length = LENGTH if kind == "chunks" else CHUNK * (max(100, CHUNKS // lanes) if is_long else 1)
    episodes = {"calls": lanes, "chunks": max(3 * lanes, CHUNKS * CHUNK // LENGTH + lanes)}
    reader: Any = Meter(counts_episodes=not is_long)
    if kind == "calls":
        reader = Calls(NoPolicy.infer)
    with tempfile.TemporaryDirectory() as folder:
        recorded: dict[str, Any] = {}
        if kind in ("none", "numbers"):
            recorded = {"out": Path(folder) / "run", "record": kind, "video": "none"}
        hocket.evaluate(
            env="nothing:make",
            env_config={"length": length},
            policy=NoPolicy(CHUNK),
            lanes=lanes,
            episodes=episodes.get(kind, 1200),
            readers=[reader],
            progress=False,
            **recorded,
        )
    if kind == "calls":
        fours = [calls for rows, calls in reader.walks if rows == 4]
        each = sum(calls for _, calls in reader.walks) / sum(rows for rows, _ in reader.walks)
        return {"four": median(fours or [0]), "each": each}
    return {
        "own": 1e6 * reader.own_s / reader.done,
        "all": 1e6 * reader.all_s / reader.done,
    }


def run(python: str, tree: Path, kind: str, lanes: int) -> dict[str, float]:
    done = subprocess.run(
        [python, __file__, str(tree), "--side", kind, str(lanes)],
        env={**os.environ, "PYTHONPATH": f"{tree / 'src'}:{HERE}"},
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", default="", help="only those whose name has this")
    parser.add_argument("--side", nargs=2, metavar=("KIND", "LANES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side[0], int(options.side[1]))))
        return 0
    sides = {"before": options.before.resolve(), "now": HERE.parents[1]}
    is_met = True
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| what | us before | us now | ratio | wanted | all processes: ratio |")
    print("|---|---|---|---|---|---|")
    for what, (kind, lanes, wanted) in ROWS.items():
        if options.rows not in what:
            continue
        found: Mapping[str, list[dict[str, float]]] = {name: [] for name in sides}
        for repeat in range(options.repeats):
            for name in list(sides)[:: 1 if repeat % 2 else -1]:
                found[name].append(run(options.python, sides[name], kind, lanes))
        ratios = {
            key: median(
                now[key] / before[key]
                for before, now in zip(found["before"], found["now"], strict=True)
            )
            for key in ("own", "all")
        }
        key = "own" if kind == "chunks" else "all"
        is_met = is_met and ratios[key] <= wanted
        before, now = (median(one[key] for one in found[name]) for name in sides)
        print(
            f"| {what} | {before:.0f} | {now:.0f} | {ratios[key]:.2f} | {wanted:.2f} "
            f"| {ratios['all']:.2f} |",
            flush=True,
        )
    print("\n| calls | before | now | wanted |\n|---|---|---|---|")
    for lanes, (four, most) in CALLS.items() if not options.rows else ():
        key = "four" if four else "each"
        counts = [run(options.python, tree, "calls", lanes)[key] for tree in sides.values()]
        what = "in a batch of four, 8 lanes" if four else "of a chunk, 64 lanes"
        is_met = is_met and counts[1] <= most
        print(f"| {what} | {counts[0]:.0f} | {counts[1]:.0f} | {most} |", flush=True)
    print("met" if is_met else "NOT MET")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
