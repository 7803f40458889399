"""A page of a run with 100,000 episodes: how long until it is drawn, and how long a change takes.

    python benchmarks/watch/large.py [--episodes 100000] [--changes 20]

A ledger is made with 20 tasks, of which all trials but the last 2,000 have ended. `hocket watch`
serves it, a headless Chromium opens the page, and episodes are committed in groups of 100. Printed
are the seconds from the request of the page until its grid is painted, and the milliseconds from
the arrival of a change in the browser until the frame after it is painted (median and worst); and,
since other work on the machine stretches both, the CPU seconds that the viewer took to read the
ledger.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from hocket.core.data import Episode, Outcome, Trial
from hocket.core.events import AttemptsBegan, EpisodesSealed
from hocket.records.ledger.ledger import Ledger

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.chromium import BINARY, browser

TASKS, LEFT, GROUP = 20, 2000, 100
LOADED_S, UPDATED_MS = 3.0, 100.0


def end(ledger: Ledger, trials: Sequence[Trial]) -> None:
    """Commit an episode of each of these trials."""
    ledger.on(
        AttemptsBegan(time=0.0, lanes=range(len(trials)), trials=trials, attempts=[0] * len(trials))
    )
    ledger.on(EpisodesSealed(time=1.0, episodes=[episode_of(trial) for trial in trials]))
    ledger.flush()


def episode_of(trial: Trial) -> Episode:
    won = (trial.seed * 7 + len(trial.task)) % 5 > 0
    return Episode(
        trial=trial,
        attempt=0,
        outcome=Outcome.SUCCESS if won else Outcome.FAILURE,
        steps=100,
        total_reward=1.0,
        terminated=won,
        truncated=not won,
        chunks=10,
        seconds=1.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--changes", type=int, default=20)
    flags = parser.parse_args()
    if BINARY is None:
        sys.exit("No Chromium is installed: make chromium")
    trials = [
        Trial(suite="suite", task=f"task {task}", seed=seed)
        for seed in range(flags.episodes // TASKS)
        for task in range(TASKS)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        with Ledger.create(folder, trials, {"config": {}}) as ledger:
            for at in range(0, len(trials) - LEFT, 2000):
                end(ledger, trials[at : min(at + 2000, len(trials) - LEFT)])
            measure(ledger, folder, trials, flags.changes, Path(scratch) / "profile")


def cpu_of(pid: int) -> float:
    """CPU seconds that a process has used."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def measure(
    ledger: Ledger, folder: Path, trials: Sequence[Trial], changes: int, profile: Path
) -> None:
    viewer = subprocess.Popen(
        [sys.executable, "-m", "hocket.watch.process", str(folder), "run"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert viewer.stdout is not None
    assert viewer.stdin is not None
    address = viewer.stdout.readline().decode().strip()
    read_s = 0.0
    try:
        with browser(profile) as chromium, chromium.page() as page:
            before_s, loads = cpu_of(viewer.pid), []
            for _ in range(3):
                began = time.perf_counter()
                page.go(address)
                page.until("window.hocket && hocket.grid.painted > 0")
                loads.append(time.perf_counter() - began)
                read_s = cpu_of(viewer.pid) - before_s if len(loads) == 1 else read_s
            took = []
            for change in range(changes):
                told = page.ask("hocket.state.received")
                at = len(trials) - LEFT + change * GROUP
                end(ledger, trials[at : at + GROUP])
                page.until(f"hocket.state.received > {told} && hocket.grid.letter({at}) !== '.'")
                time.sleep(0.2)
                took.append(page.ask("hocket.state.updateMs"))
    finally:
        viewer.stdin.close()
        viewer.wait(30)
    first, later = loads[0], statistics.median(loads[1:])
    print(f"{len(trials):,} trials: the page is drawn after {first:.2f} s, while the viewer reads "
          f"the ledger for the first time ({read_s:.2f} CPU s), and {later:.2f} s later (limit "
          f"{LOADED_S:g} s)")  # fmt: skip
    print(f"a change is painted {statistics.median(took):.0f} ms after it came, at worst "
          f"{max(took):.0f} ms (limit {UPDATED_MS:g} ms), n = {len(took)}")  # fmt: skip
    sys.exit(later > LOADED_S or first > LOADED_S or statistics.median(took) > UPDATED_MS)


if __name__ == "__main__":
    main()
