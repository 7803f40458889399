"""What watching costs a run: nobody looks, or ten pages do, in turns.

    python benchmarks/watch/ten_pages.py [--repeats 6] [--episodes 40] [--pages 10] [--json]

The run is `busy.py`'s: 4 lanes, steps of 2 ms CPU, a camera that the policy reads. Each repeat
makes one run alone and one beside `hocket watch` with ten pages that follow it and look at four
lanes each: clients that take what a browser's page takes, in one process that stands back (nice 19)
as browsers of other machines would. In every other repeat the order is turned round. Printed are
env steps a second and the CPU seconds of the run's own processes for 1,000 steps, as ratios of
medians with the range of the repeats' own ratios, the share of a core that the viewer took, and
what `live/status.json` costs a run that nobody looks at (CPU, against the same run without it).
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
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_CLIENTS = """
import asyncio, json, os, sys
from websockets.asyncio.client import connect
os.nice(19)
async def page(address):
    count = 0
    async with connect(address, max_size=None, compression=None) as socket:
        async def look():
            while True:
                await socket.send(json.dumps({"look": [0, 1, 2, 3]}))
                await asyncio.sleep(2)
        asker = asyncio.ensure_future(look())
        try:
            async for message in socket:
                count += len(message)
        finally:
            asker.cancel()
    return count
async def main():
    pages = [page(sys.argv[1]) for _ in range(int(sys.argv[2]))]
    counts = await asyncio.gather(*pages, return_exceptions=True)
    print(json.dumps([one if isinstance(one, int) else str(one) for one in counts]))
asyncio.run(main())
"""
_UNTOLD = """
import hocket.results.live as live
class Untold:
    def __init__(self, folder): pass
    def follow(self, look, tally): pass
    def on(self, event): pass
    def close(self): pass
import hocket.runs.run as run
run.LiveStatus = Untold
"""


def run_once(folder: Path, episodes: int, pages: int, *, is_told: bool = True) -> dict[str, Any]:
    """One run; with pages, beside a viewer that they look at."""
    source = (
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n{'' if is_told else _UNTOLD}\n"
        "import os; os.environ['PYTHONPATH'] = os.pathsep.join(sys.path)\n"
        "import hocket, json, resource\n"
        f"report = hocket.evaluate(env='busy:Busy', policy='busy:Looks', episodes={episodes},"
        f" lanes=4, out={str(folder)!r}, video='none')\n"
        "used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF,"
        " resource.RUSAGE_CHILDREN)]\n"
        "done = report.throughput\n"
        "print(json.dumps({'steps': done.env_steps, 'wall_s': done.wall_s,"
        " 'cpu_s': sum(one.ru_utime + one.ru_stime for one in used)}))\n"
    )
    viewer = clients = None
    started_s = 0.0
    if pages:
        folder.mkdir(parents=True)
        viewer = subprocess.Popen(
            [sys.executable, "-m", "hocket.watch.process", str(folder), "run"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert viewer.stdout is not None
        address = viewer.stdout.readline().decode().strip().replace("http", "ws", 1) + "live"
        clients = subprocess.Popen(
            [sys.executable, "-c", _CLIENTS, address, str(pages)], stdout=subprocess.PIPE
        )
        time.sleep(2.0)
        started_s = cpu_of(viewer.pid)
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if viewer is not None and clients is not None:
        found["viewer_s"] = cpu_of(viewer.pid) - started_s
        assert viewer.stdin is not None
        viewer.stdin.close()
        viewer.wait(30)
        told, _ = clients.communicate(timeout=30)
        found["received"] = json.loads(told)
    return found


def cpu_of(pid: int) -> float:
    """CPU seconds that a process has used."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    arms: dict[str, list[dict[str, Any]]] = {"alone": [], "watched": [], "untold": []}
    with tempfile.TemporaryDirectory() as scratch:
        for repeat in range(flags.repeats):
            order = ["alone", "watched", "untold"]
            for arm in order if repeat % 2 else reversed(order):
                pages = flags.pages if arm == "watched" else 0
                folder = Path(scratch) / f"{arm}{repeat}"
                found = run_once(folder, flags.episodes, pages, is_told=arm != "untold")
                arms[arm].append(found)
                print(f"{arm:8} {found['steps'] / found['wall_s']:8.1f} env steps/s, "
                      f"{1000 * found['cpu_s'] / found['steps']:.3f} CPU s/1,000 steps",
                      file=sys.stderr, flush=True)  # fmt: skip
    figures = {
        "speed watched / alone": ratio(
            arms, "watched", "alone", lambda f: f["steps"] / f["wall_s"]
        ),
        "CPU watched / alone": ratio(arms, "watched", "alone", lambda f: f["cpu_s"] / f["steps"]),
        "CPU told / untold": ratio(arms, "alone", "untold", lambda f: f["cpu_s"] / f["steps"]),
        "viewer's CPU": statistics.median(f["viewer_s"] / f["wall_s"] for f in arms["watched"]),
        "bytes to a page": statistics.median(n for f in arms["watched"] for n in f["received"]),
    }
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
