"""A page of a run with 100,000 episodes: how long until it is drawn, and how long a change takes.

    python benchmarks/watch/large.py [--episodes 100000] [--changes 20]

A ledger is made with 20 tasks, of which all trials but the last 2,000 have ended. `hocket watch`
serves it, a headless Chromium opens the page, and episodes are committed in groups of 100. Then
`report.html` is written and opened from disk. Printed are the seconds from the request of each page
until its grid is painted, and in milliseconds, to the frame after it is painted (median and worst):
a change, from its arrival in the browser, and a filter, from the click on its chip. Other work on
the machine stretches all of them: the CPU that the viewer took to read the ledger, and that the
browser's main thread took for changes and filters, is printed, too.
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
from hocket.results.page.report_page import write_report_page

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.chromium import BINARY, Page, browser

TASKS, LEFT, GROUP = 20, 2000, 100
LOADED_S, FILTERED_MS, UPDATED_MS = 2.0, 100.0, 50.0
FILTER = """
(async () => {
  const chip = document.querySelector("#outcomes button[data-filter=%s]");
  const began = performance.now();
  chip.click();
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - began;
})()
"""
"""A click on a chip, until the frame after what it leaves is painted."""


def end(ledger: Ledger, trials: Sequence[Trial]) -> None:
    """Commit an episode of each of these trials."""
    ledger.on(
        AttemptsBegan(time=0.0, lanes=range(len(trials)), trials=trials, attempts=[0] * len(trials))
    )
    ledger.on(EpisodesSealed(time=1.0, episodes=[episode_of(trial) for trial in trials]))
    ledger.flush()


def episode_of(trial: Trial) -> Episode:
    won = (trial.seed * 7 + len(trial.task)) % 5 > 0
    outcome = Outcome.SUCCESS if won else Outcome.FAILURE
    return Episode(
        trial=trial,
        attempt=0,
        outcome=Outcome.ERROR if trial.seed % 500 == 3 else outcome,
        error="It broke." if trial.seed % 500 == 3 else None,
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
            page.call("Performance.enable", timeDomain="threadTicks")
            before_s, loads = cpu_of(viewer.pid), []
            for _ in range(3):
                began = time.perf_counter()
                page.go(address)
                page.until("window.hocket && hocket.grid.painted > 0")
                loads.append(time.perf_counter() - began)
                read_s = cpu_of(viewer.pid) - before_s if len(loads) == 1 else read_s
            took, before_ms = [], busy_ms(page)
            for change in range(changes):
                told = page.ask("hocket.state.received")
                at = len(trials) - LEFT + change * GROUP
                end(ledger, trials[at : at + GROUP])
                page.until(f"hocket.state.received > {told} && hocket.grid.letter({at}) !== '.'")
                time.sleep(0.2)
                took.append(page.ask("hocket.state.updateMs"))
            changes_ms = (busy_ms(page) - before_ms) / changes
            before_ms = busy_ms(page)
            filters = filtered(page)
            filters_ms = (busy_ms(page) - before_ms) / len(filters)
            report, opened = write_report_page(folder), []
            for _ in range(3):
                page.go("about:blank")
                began = time.perf_counter()
                page.open(report)
                page.until("window.hocket && hocket.grid.painted > 0 && hocket.list.drawn > 0")
                opened.append(time.perf_counter() - began)
            before_ms = busy_ms(page)
            of_report = filtered(page)
            of_report_ms = (busy_ms(page) - before_ms) / len(of_report)
    finally:
        viewer.stdin.close()
        viewer.wait(30)
    first, later, from_disk = loads[0], statistics.median(loads[1:]), statistics.median(opened)
    print(f"{len(trials):,} trials: the page is drawn after {first:.2f} s, while the viewer reads "
          f"the ledger for the first time ({read_s:.2f} CPU s), and {later:.2f} s later; "
          f"report.html with its table after {from_disk:.2f} s (limit {LOADED_S:g} s)")  # fmt: skip
    for what, found, cpu_ms, limit in (
        ("a change of 100 episodes", took, changes_ms, UPDATED_MS),
        ("a filter of the page that goes on", filters, filters_ms, FILTERED_MS),
        ("a filter of report.html", of_report, of_report_ms, FILTERED_MS),
    ):
        print(f"{what} is painted in {statistics.median(found):.0f} ms, at worst "
              f"{max(found):.0f} ms (limit {limit:g} ms), n = {len(found)}; "
              f"{cpu_ms:.0f} ms of CPU on average")  # fmt: skip
    slow = max(first, later, from_disk) > LOADED_S or statistics.median(took) > UPDATED_MS
    sys.exit(slow or statistics.median([*filters, *of_report]) > FILTERED_MS)


def filtered(page: Page) -> list[float]:
    """Milliseconds that clicks on chips took, each kind out and in again."""
    return [page.ask(FILTER % kind) for kind in ("success", "failure") * 5 for _ in "oi"]


def busy_ms(page: Page) -> float:
    """Milliseconds of CPU that the page's main thread has used: less noisy than a clock."""
    found = page.call("Performance.getMetrics")["metrics"]
    return 1e3 * next(each["value"] for each in found if each["name"] == "TaskDuration")


if __name__ == "__main__":
    main()
