"""What a run of many trials costs to plan, to resume once it is finished, to report and to compare,
against another commit: both sides interleaved, each in its own checkout.

    git worktree add ../before d5ec3ffb
    python benchmarks/results/large_runs.py ../before [--episodes 100000] [--repeats 3]

Each side makes two finished runs of ten tasks with four chunks an episode, as an engine would tell
them, in its own format. Printed are CPU seconds of the whole process (medians), their ratio, and
the most memory that it had; and the same of this side alone with ten times as many episodes, unless
`--most 0`. Exit code 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve()
LANES, TASKS, CHUNKS = 64, 10, 4
BOUNDS = {"plan": 1 / 3, "resume": 0.1, "report": 1 / 3, "compare": 1 / 3}
MOST_MIB = 512


def make(folder: Path, count: int, seed: int, *, planned_only: bool) -> None:
    """A finished run, or one that is only planned; runs in that side's interpreter."""
    import numpy as np

    from hocket.core.data import Chunk, Episode, Outcome, Trial
    from hocket.core.events import AttemptsBegan, BatchInferred, ChunksExecuted, EpisodesSealed
    from hocket.records.chunks import ChunkRows
    from hocket.records.ledger.ledger import Ledger
    from hocket.runs.config import EvalConfig

    env = "gym:CartPole-v1"
    trials = [Trial(env, f"task{i % TASKS}", i // TASKS) for i in range(count)]
    config = EvalConfig(env=(env,), policy="random", episodes=count // TASKS).to_plain()
    config.pop("json_episodes", None)  # the side before knows none
    rng = np.random.default_rng(seed)

    def told(value: float) -> dict[str, Any]:
        said = {"told": {"distance": value, "grasped": value < 0.3}}
        return said if "told" in Episode._fields else {}  # the side before may know none

    with Ledger.create(folder, trials, {"config": config}) as ledger:
        if planned_only:
            return
        chunk = Chunk(actions=np.zeros((16, 1)), version=0, source="local")
        ledger.attach(ChunkRows(leg=ledger.leg))
        for first in range(0, count, LANES):
            some = trials[first : first + LANES]
            size, now = len(some), float(first)
            lanes = range(size)
            same = {"lanes": lanes, "trials": some, "attempts": [0] * size}
            ledger.on(AttemptsBegan(time=now, **same))
            for number in range(CHUNKS):
                at = now + number / CHUNKS
                ledger.on(
                    BatchInferred(
                        time=at + 0.1, batch=first // LANES * CHUNKS + number + 1, began=at,
                        ended=at + 0.1, chunks=[number] * size, delivered=[chunk] * size,
                        ready=[at] * size, size=size, **same,
                    )
                )  # fmt: skip
                ledger.on(
                    ChunksExecuted(
                        time=at + 0.2, chunks=[number] * size, steps=[16] * size,
                        rewards=[np.zeros(16)] * size, terminated=[False] * size,
                        truncated=[False] * size, busy=[0.1] * size, observed=[0.01] * size,
                        final=[None] * size, **same,
                    )
                )  # fmt: skip
            while ledger.behind():
                time.sleep(0.001)
            lot, steps = rng.random(size), rng.integers(1, 64, size)
            ledger.on(
                EpisodesSealed(
                    time=now + 1,
                    episodes=[
                        Episode(
                            trial=trial, attempt=0, steps=int(steps[i]), chunks=CHUNKS,
                            outcome=Outcome.ERROR if lot[i] < 0.001
                            else Outcome.SUCCESS if lot[i] < 0.7 else Outcome.FAILURE,
                            total_reward=float(lot[i]), seconds=1.0,
                            error="RuntimeError: lost" if lot[i] < 0.001 else None,
                            **told(float(lot[i])),
                        )
                        for i, trial in enumerate(some)
                    ],
                )
            )  # fmt: skip


def spent(tree: Path, python: str, *words: str) -> tuple[float, float]:
    """CPU seconds and MiB at most of a process with this side's package."""
    child = subprocess.Popen(
        [python, *words],
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(child.pid, 0)
    if status not in (0, 256):  # 1: some trials ended as errors
        sys.exit(f"{' '.join(words)} failed in {tree}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def verbs(place: Path, count: int) -> dict[str, tuple[str, ...]]:
    verb, one, two = ("-m", "hocket"), str(place / "one"), str(place / "two")
    planned = ("--make", str(place / "planned"), str(count), "0", "--planned")
    return {
        "plan": (str(HERE), ".", *planned),
        "report": (*verb, "report", one),
        "resume": (*verb, "resume", one),
        "compare": (*verb, "compare", one, two),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--most", type=int, default=10, help="times as many, for the memory")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--make", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--planned", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.make:
        folder, count, seed = flags.make
        make(Path(folder), int(count), int(seed), planned_only=flags.planned)
        return 0
    sides = {"before": flags.before.resolve(), "now": HERE.parents[2]}
    is_met = True
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        places = {name: Path(scratch) / name for name in sides}
        for seed, run in enumerate(("one", "two")):
            for name, tree in sides.items():
                words = (str(HERE), ".", "--make", str(places[name] / run), str(flags.episodes))
                spent(tree, flags.python, *words, str(seed))
        print("| verb | s before | s now | ratio | wanted | MiB before | MiB now |")
        print("|---|---|---|---|---|---|---|")
        for verb, bound in BOUNDS.items():
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
            if verb == "resume":  # what a resume of a finished run finds is its report
                for name, tree in sides.items():
                    spent(tree, flags.python, *verbs(places[name], 0)["report"])
            for _ in range(flags.repeats):
                for name, tree in sides.items():
                    words = verbs(places[name], flags.episodes)[verb]
                    found[name].append(spent(tree, flags.python, *words))
                    shutil.rmtree(places[name] / "planned", ignore_errors=True)
            cpu = {name: median(each for each, _ in some) for name, some in found.items()}
            ratios = [n[0] / b[0] for b, n in zip(found["before"], found["now"], strict=True)]
            mib = {name: max(each for _, each in some) for name, some in found.items()}
            is_met = is_met and median(ratios) <= bound
            print(
                f"| {verb} | {cpu['before']:.2f} | {cpu['now']:.2f} | {median(ratios):.2f} "
                f"| {bound:.2f} | {mib['before']:.0f} | {mib['now']:.0f} |",
                flush=True,
            )
        if flags.most:
            count, large = flags.most * flags.episodes, Path(scratch) / "large"
            words = (str(HERE), ".", "--make", str(large / "one"), str(count), "0")
            spent(sides["now"], flags.python, *words)
            shutil.copytree(large / "one", large / "two")
            for verb in ("report", "resume", "compare"):
                cpu_s, most = spent(sides["now"], flags.python, *verbs(large, count)[verb])
                is_met = is_met and most <= MOST_MIB
                print(f"{verb} of {count:,} episodes: {cpu_s:.1f} s, {most:.0f} MiB", flush=True)
    print("met" if is_met else "NOT MET")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
