"""The front page of a folder with 1,000 runs: how long until all are listed, and a filter.

    python benchmarks/watch/many_runs.py [--runs 1000] [--keep FOLDER]

The runs are of four arms and many checkpoints, each with a ledger of 50 trials, a run.yaml and a
report.json, as `hocket eval` leaves them; one in fifty was interrupted and has no report, one in
fifty trains. `hocket watch` serves the folder and a headless Chromium opens its page. Printed are
the seconds from the request until the first lines are drawn and until all are known, of a server
that begins (whose memory is empty) and of a page that is opened again; then the milliseconds of a
filter, from the key to the frame after it is painted (median and worst), and the CPU of both.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hocket.core.data import Trial
from hocket.records.ledger.ledger import Ledger
from hocket.records.run_file import save_run
from hocket.results.recorded import open_recorded
from large import FILTERED_MS, LOADED_S, busy_ms, cpu_of, end

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.chromium import BINARY, Page, browser

TASKS, SEEDS, EVERY, STEP = 5, 10, 50, 2000
ARMS = ("act", "diffusion", "pi0", "smolvla")
TYPED = """
(async (text) => {
  const box = document.getElementById("run-find"), began = performance.now();
  box.value = text;
  box.dispatchEvent(new Event("input"));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return [performance.now() - began, hocket.runs.shown.length];
})(%s)
"""


def make(root: Path, count: int) -> None:
    """The runs: real ones of each number of successes, copied with settings of their own."""
    trials = [Trial("suite", f"task {t}", seed) for seed in range(SEEDS) for t in range(TASKS)]
    about = {"exactness": "bitwise", "code": {"hocket": {"commit": "0" * 40}}, "versions": {}}
    models = []
    for model in range(4):
        folder = root / f".model-{model}"
        config = {"env": ["suite"], "policy": "?", "episodes": SEEDS, "seed": 0, "lanes": 8}
        with Ledger.create(folder, trials, {"config": config}) as ledger:
            end(ledger, trials[: len(trials) - 5 * (model == 3)])
        save_run(folder, config, about=about)
        open_recorded(folder).report.save(folder)
        models.append(folder)
    for number in range(count):
        arm, step = ARMS[number % len(ARMS)], STEP * (1 + number // len(ARMS))
        folder = root / f"{arm}-{step:07d}"
        is_training, is_cut = number % EVERY == 1, number % EVERY == 2
        settings = {"policy": f"lerobot:out/{arm}/checkpoints/{step:07d}", "replan": 4 + number % 3}
        if is_training:
            folder.mkdir()
            lines = [
                {"kind": "eval", "env_steps": at, "n": 50, "eval/success": at / 10000,
                 "eval/success_low": 0.0, "eval/success_high": 1.0}
                for at in range(0, 10000, 100)
            ]  # fmt: skip
            (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))
            save_run(folder, {"env": ["suite"], **settings, "steps": 10000}, about=about)
            continue
        shutil.copytree(models[3 if is_cut else number % 3], folder)
        if is_cut:
            (folder / "report.json").unlink()
        else:
            report = json.loads((folder / "report.json").read_text())
            report["config"] |= settings
            rate = min(1.0, 0.2 + 0.15 * (number % len(ARMS)) + step / STEP / 800)
            bounds = [max(0.0, rate - 0.1), min(1.0, rate + 0.1)]
            report["overall"] |= {"rate": rate, "interval": bounds}
            text = json.dumps(report, indent=1)
            (folder / "report.json").write_text(text)
        save_run(folder, {"env": ["suite"], **settings}, about=about)
    for model in models:
        shutil.rmtree(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--keep", type=Path, help="leave the runs there, to be looked at")
    flags = parser.parse_args()
    if BINARY is None:
        sys.exit("No Chromium is installed: make chromium")
    with tempfile.TemporaryDirectory() as scratch:
        root = flags.keep or Path(scratch) / "runs"
        root.mkdir(parents=True)
        make(root, flags.runs)
        measure(root, flags.runs, Path(scratch) / "profile")


def measure(root: Path, count: int, profile: Path) -> None:
    words = [sys.executable, "-m", "hocket.watch.process", str(root)]
    viewer = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert viewer.stdout is not None
    assert viewer.stdin is not None
    address = viewer.stdout.readline().decode().strip()
    try:
        with browser(profile) as chromium, chromium.page() as page:
            page.call("Performance.enable", timeDomain="threadTicks")
            before_s, opened = cpu_of(viewer.pid), [drawn(page, address, count) for _ in range(3)]
            read_s, before_ms = cpu_of(viewer.pid) - before_s, busy_ms(page)
            asked = ["act", "act 04", "", "replan=5", "pi0 replan=4", ""] * 3
            found = [page.ask(TYPED % json.dumps(text)) for text in asked]
            filter_ms = (busy_ms(page) - before_ms) / len(found)
    finally:
        viewer.stdin.close()
        viewer.wait(30)
    (first, all_known), again = opened[0], statistics.median(known for _, known in opened[1:])
    took = [ms for ms, _ in found]
    print(f"{count:,} runs: the first lines are drawn after {first:.2f} s, all are known after "
          f"{all_known:.2f} s, and after {again:.2f} s when the page is opened again (limit "
          f"{LOADED_S:g} s); the viewer took {read_s:.2f} s of CPU for all three")  # fmt: skip
    print(f"a filter is painted in {statistics.median(took):.0f} ms, at worst "
          f"{max(took):.0f} ms (limit {FILTERED_MS:g} ms), n = {len(took)}; "
          f"{filter_ms:.0f} ms of CPU on average")  # fmt: skip
    sys.exit(all_known > LOADED_S or statistics.median(took) > FILTERED_MS)


def drawn(page: Page, address: str, count: int) -> tuple[float, float]:
    """Seconds until a page shows lines, and until it knows all runs."""
    page.go("about:blank")
    began = time.perf_counter()
    page.go(address)
    page.until("window.hocket && document.querySelectorAll('#run-list tr a').length > 0")
    first = time.perf_counter() - began
    page.until(f"hocket.runs.lines.size === {count} && hocket.runs.shown.length === {count}")
    return first, time.perf_counter() - began


if __name__ == "__main__":
    main()
