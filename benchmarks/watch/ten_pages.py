"""What watching costs a run: nobody looks, or ten pages do, in turns.

    python benchmarks/watch/ten_pages.py [--repeats 6] [--episodes 40] [--lanes 2] [--pages 10]

The run is `busy.py`'s: steps of 2 ms CPU, a camera that the policy reads. Each repeat makes a run
alone and one beside `hocket watch`, with ten pages of a Chromium (`pages.py`) that look at up to
four lanes each; in every other repeat the order is turned round. Browsers are no part of
what is measured: they and the viewer have the last core to themselves, as if they were on another
machine, and the run has the others in both arms. Printed are env steps a second and the CPU seconds
of the run's own processes for 1,000 steps, as ratios of medians with the range of the repeats' own
ratios, the share of a core that the viewer took, and with `--untold` what `live/status.json` costs
a run that nobody looks at (CPU, against the same run without it).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CORES = sorted(os.sched_getaffinity(0))
_UNTOLD = """
import hocket.results.showing.live as live
class Untold:
    def __init__(self, folder): pass
    def follow(self, look, tally): pass
    def on(self, event): pass
    def close(self): pass
import hocket.runs.run as run
run.LiveStatus = Untold
"""


def run_once(
    folder: Path, flags: argparse.Namespace, pages: int, *, is_told: bool = True
) -> dict[str, Any]:
    """One run; with pages, beside a viewer that they look at."""
    source = (
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n{'' if is_told else _UNTOLD}\n"
        "import os; os.environ['PYTHONPATH'] = os.pathsep.join(sys.path)\n"
        "import hocket, json, resource\n"
        f"report = hocket.evaluate(env='busy:Busy', policy='busy:Looks', episodes={flags.episodes},"
        f" lanes={flags.lanes}, out={str(folder)!r}, video='none')\n"
        "used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF,"
        " resource.RUSAGE_CHILDREN)]\n"
        "done = report.throughput\n"
        "print(json.dumps({'steps': done.env_steps, 'wall_s': done.wall_s,"
        " 'cpu_s': sum(one.ru_utime + one.ru_stime for one in used)}))\n"
    )
    with contextlib.ExitStack() as stack:
        viewer = stack.enter_context(Watched(folder, pages)) if pages else None
        done = subprocess.run(
            ["taskset", "--cpu-list", ",".join(map(str, CORES[:-1])), sys.executable, "-c", source],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found if viewer is None else {**found, **viewer.told()}


class Watched:
    """A viewer of a run that is to begin, and the pages that look at it."""

    def __init__(self, folder: Path, pages: int) -> None:
        folder.mkdir(parents=True)
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        apart = ["taskset", "--cpu-list", str(CORES[-1])]
        viewer = [*apart, sys.executable, "-m", "hocket.watch.process", str(folder), "run"]
        self._viewer = subprocess.Popen(viewer, **pipes)
        address = self._viewer.stdout.readline().strip()
        looking = [*apart, sys.executable, str(HERE / "pages.py"), address, str(pages)]
        self._pages = subprocess.Popen(looking, **pipes)
        assert self._pages.stdout.readline() == "ready\n", "The pages were not drawn."
        self._started_s = cpu_of(self._viewer.pid)

    def told(self) -> dict[str, Any]:
        """What the viewer took since then, and what came to the pages."""
        took_s = cpu_of(self._viewer.pid) - self._started_s
        said, _ = self._pages.communicate(timeout=60)
        return {"viewer_s": took_s, "received": json.loads(said)}

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._pages, self._viewer):
            with contextlib.suppress(ValueError):
                process.communicate(timeout=60)


def cpu_of(pid: int) -> float:
    """CPU seconds that a process has used."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--untold", action="store_true", help="also measure live/status.json")
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    order = ["alone", "watched", *(["untold"] if flags.untold else [])]
    arms: dict[str, list[dict[str, Any]]] = {arm: [] for arm in order}
    with tempfile.TemporaryDirectory() as scratch:
        for repeat in range(flags.repeats):
            for arm in order if repeat % 2 else reversed(order):
                pages = flags.pages if arm == "watched" else 0
                folder = Path(scratch) / f"{arm}{repeat}"
                found = run_once(folder, flags, pages, is_told=arm != "untold")
                arms[arm].append(found)
                print(f"{arm:8} {found['steps'] / found['wall_s']:8.1f} env steps/s, "
                      f"{1000 * found['cpu_s'] / found['steps']:.3f} CPU s/1,000 steps",
                      file=sys.stderr, flush=True)  # fmt: skip
    figures = {
        "speed watched / alone": ratio(
            arms, "watched", "alone", lambda f: f["steps"] / f["wall_s"]
        ),
        "CPU watched / alone": ratio(arms, "watched", "alone", lambda f: f["cpu_s"] / f["steps"]),
        "viewer's CPU": statistics.median(f["viewer_s"] / f["wall_s"] for f in arms["watched"]),
        "changes to a page": statistics.median(
            n for f in arms["watched"] for n, _ in f["received"]
        ),
        "pictures to a page": statistics.median(
            n for f in arms["watched"] for _, n in f["received"]
        ),
    }
    if flags.untold:
        figures["CPU told / untold"] = ratio(
            arms, "alone", "untold", lambda f: f["cpu_s"] / f["steps"]
        )
    if flags.json:
        print(json.dumps(figures))
        return
    for name, found in figures.items():
        print(f"{name}: {found:.3f}" if isinstance(found, float) else f"{name}: {found}")


def ratio(arms: dict[str, list[dict[str, Any]]], a: str, b: str, figure: Any) -> str:
    """The ratio of medians, and the range of the ratios of each repeat."""
    each = [figure(x) / figure(y) for x, y in zip(arms[a], arms[b], strict=True)]
    whole = statistics.median(map(figure, arms[a])) / statistics.median(map(figure, arms[b]))
    spread = f"{min(each):.3f} to {max(each):.3f}"
    return f"{whole:.3f} (median of repeats {statistics.median(each):.3f}, {spread})"


if __name__ == "__main__":
    main()
