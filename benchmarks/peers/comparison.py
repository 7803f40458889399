"""Two programs that run the same episodes with the same policy, in turns, and a row of their table.

A side is a script of this folder started with `--side NAME FILE`. It writes what it measured there:
seconds of CPU of its process and all below it, and of wall time, from its first observations to its
last episode; and the return and the length of each episode.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- peers: rows by `--docs` -->", "<!-- peers end -->"
TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu_s() -> float:
    """Seconds of CPU of this process, of all below it, and of those of them that have ended."""
    parents, spent = dict[int, int](), dict[int, float]()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        number = int(folder.name)
        parents[number] = int(fields[1])
        spent[number] = sum(map(int, fields[11:15])) / TICKS
    found, total = [os.getpid()], 0.0
    while found:
        number = found.pop()
        total += spent.get(number, 0.0)
        found += [child for child, parent in parents.items() if parent == number]
    return total


class Stopwatch:
    """Runs from the first `start` to the last `stop`."""

    def __init__(self) -> None:
        self.began: tuple[float, float] | None = None
        self.cpu_s = self.wall_s = 0.0

    def start(self) -> None:
        if self.began is None:
            self.began = tree_cpu_s(), time.perf_counter()

    def stop(self) -> None:
        assert self.began is not None
        self.cpu_s = tree_cpu_s() - self.began[0]
        self.wall_s = time.perf_counter() - self.began[1]


class Measured:
    """A reader of hocket's events that lets a stopwatch run while lanes have chunks to execute."""

    def __init__(self) -> None:
        self.watch = Stopwatch()

    def on(self, event: Any) -> None:
        kind = type(event).__name__
        if kind == "LanesReady":
            self.watch.start()
        elif kind == "EpisodesEnded":
            self.watch.stop()

    def close(self) -> None: ...


def run_hocket(**setup: Any) -> dict[str, Any]:
    """What a side writes, of an evaluation by hocket."""
    import hocket

    clock = Measured()
    report = hocket.evaluate(readers=[clock], **setup)
    return outcome(
        clock.watch,
        [episode.total_reward for episode in report.episodes],
        [episode.steps for episode in report.episodes],
    )


def outcome(watch: Stopwatch, returns: Sequence[float], steps: Sequence[int]) -> dict[str, Any]:
    """What a side writes."""
    return {
        "cpu_s": watch.cpu_s,
        "wall_s": watch.wall_s,
        "returns": [float(value) for value in returns],
        "steps": [int(value) for value in steps],
    }


Found = dict[str, list[dict[str, Any]]]
"""What each side wrote, each time."""


def median(found: Found, side: str, key: str) -> float:
    return statistics.median(run[key] for run in found[side])


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One script's."""

    script: Path
    what: str
    peer: str
    sides: dict[str, Callable[[argparse.Namespace], dict[str, Any]]]
    """`hocket`, `peer`, and what else is measured in the same run."""
    why_unequal: str = ""
    """Where returns cannot be equal to the bit: why."""
    note: Callable[[Found], str] = lambda _: ""
    """What else the row says."""

    def main(self, parser: argparse.ArgumentParser) -> Found:
        """Run the sides in turns, print the row, and write it to the page where that is asked for.
        Empty in a side's own process."""
        parser.add_argument("--repeats", type=int, default=3)
        parser.add_argument("--docs", action="store_true", help=f"write the row to {PAGE.name}")
        parser.add_argument("--peer-python", default=sys.executable, help="interpreter of the peer")
        parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
        options = parser.parse_args()
        if options.side:
            name, file = options.side
            Path(file).write_text(json.dumps(self.sides[name](options)))
            return {}
        found: Found = {name: [] for name in self.sides}
        for _ in range(options.repeats):
            for name in self.sides:
                found[name].append(self._ask(name, options.peer_python))
                said = ", ".join(f"{k} {v:.4g}" for k, v in found[name][-1].items() if k in SHOWN)
                print(f"{name:8} {said}", flush=True)
        row = self._row(found)
        print(row)
        if options.docs:
            write_row(self.script.name, row)
        return found

    def _ask(self, name: str, python: str) -> dict[str, Any]:
        interpreter = python if name == "peer" else sys.executable
        flags = [word for word in sys.argv[1:] if word != "--docs"]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "side.json"
            words = [interpreter, str(self.script), *flags, "--side", name, str(file)]
            done = subprocess.run(words, cwd=folder, text=True, capture_output=True, check=False)
            if done.returncode:
                raise SystemExit(f"{name} ended with {done.returncode}: {done.stderr[-3000:]}")
            return dict(json.loads(file.read_text()))

    def _row(self, found: Found) -> str:
        ours, peer = found["hocket"], found["peer"]
        cells = [f"`peers/{self.script.name}`", self.what, f"{self.peer}, {len(peer)} runs"]
        for key in ("cpu_s", "wall_s"):
            sides = [median(found, side, key) for side in ("hocket", "peer")]
            cells.append(f"{sides[0]:.1f} / {sides[1]:.1f} ({sides[1] / sides[0]:.2f}x)")
        rows = list(zip(*(ours[0][k] + peer[0][k] for k in ("returns", "steps")), strict=True))
        half = len(rows) // 2
        pairs = list(zip(rows[:half], rows[half:], strict=True))
        same = sum(a == b for a, b in pairs)
        said = f"{same} of {half} equal to the bit"
        if same < half:
            far = max(abs(a[0] - b[0]) for a, b in pairs) / max(abs(b[0]) for _, b in pairs)
            said += f"; returns differ by {100 * far:.2g} % of the largest{self.why_unequal}"
            said += "" if all(a[1] == b[1] for a, b in pairs) else "; LENGTHS DIFFER"
        cells += [said + self.note(found), f"{os.getloadavg()[0]:.0f}"]
        return f"| {' | '.join(cells)} |"


SHOWN = ("cpu_s", "wall_s", "step_s", "frame_s")


def write_row(script: str, row: str) -> None:
    """Put a script's row into the page, in place of its last one."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    rows, _, after = rest.partition(END)
    kept = [
        line for line in rows.splitlines() if line and not line.startswith(f"| `peers/{script}")
    ]
    PAGE.write_text("\n".join([before + BEGIN, *kept, row, END + after]))
