"""Exporting episodes with two cameras to LeRobotDataset v3, against LeRobot's own writer.

A run of a cheap env with two cameras is recorded with `--record full`, and exported: time (of the
clock, and of all cores, which a busy machine changes less), peak memory and size, of all episodes
and of a quarter, since memory must not grow with their number. Where LeRobot's interpreter is there
(hocket venv lerobot), its own writer gets the same frames: as arrays, so that it need not
decode them as the export must. LeRobot is asked for the codec that hocket uses, frame by frame into
the encoder and through PNG files, and for its default.

    python benchmarks/recording/export.py [--episodes 100] [--pixels 128] [--steps 100]
        [--writers 3]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import hocket
from hocket.runs.demonstrations.chosen import Choice, ExportConfig, Silent, open_chosen
from hocket.runs.demonstrations.episodes import Demonstrations
from hocket.workers.sinks.encoder import read_pictures

HERE = Path(__file__).parent
LEROBOT = HERE.parents[1] / "venvs" / "lerobot" / "bin" / "python"
WRITERS = (("h264", "streaming"), ("h264", "png"), ("libsvtav1", "png"))
_MEASURE = """
import json, resource, sys, time
from pathlib import Path
from hocket.exports import export_run
began, before = time.monotonic(), time.process_time()
export_run(Path(sys.argv[1]), "lerobot", Path(sys.argv[2]))
seconds = time.monotonic() - began
used, workers = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
cpu_s = sum(each.ru_utime + each.ru_stime for each in (used, workers)) - before
print(json.dumps({"seconds": seconds, "cpu_s": cpu_s, "peak_mib": used.ru_maxrss / 1024}))
"""


def record(folder: Path, episodes: int, *, pixels: int, steps: int) -> Path:
    """A run with every picture."""
    hocket.evaluate(
        env="shapes:Shapes",
        policy="random",
        out=folder,
        episodes=episodes,
        record="full",
        video="none",
        env_config={"pixels": pixels, "steps": steps},
    )
    return folder


def measure(command: list[str]) -> dict[str, Any]:
    """What a process of its own tells of its time and memory."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        sys.exit(f"{' '.join(command[:2])} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"measured: {found}", flush=True)
    return found


def size_of(folder: Path) -> float:
    """In MiB."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def dump(run: Path, folder: Path) -> None:
    """Every episode's frames as arrays."""
    chosen = open_chosen(run, Choice())
    config, scratch = ExportConfig(), folder / ".scratch"
    for number, demo in enumerate(Demonstrations(chosen, config, scratch, Silent())):
        place = folder / f"{number:05d}"
        place.mkdir(parents=True)
        for name, video in demo.cameras.items():
            np.save(place / f"{name}.npy", np.stack(list(read_pictures(video, demo.length))))
        np.save(place / "state.npy", demo.observations["observation/state"][:-1].astype(np.float32))
        np.save(place / "action.npy", demo.actions.astype(np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--pixels", type=int, default=128)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--writers", type=int, default=len(WRITERS), help="of LeRobot's, at most")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    os.chdir(HERE)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        shape = {"pixels": flags.pixels, "steps": flags.steps}
        began = time.monotonic()
        whole = record(root / "run", flags.episodes, **shape)
        quarter = record(root / "quarter", max(1, flags.episodes // 4), **shape)
        print(f"recorded in {time.monotonic() - began:.0f} s, not counted below")
        for title, run in (("hocket, a quarter", quarter), ("hocket", whole)):
            out = root / "out"
            rows[title] = measure([sys.executable, "-c", _MEASURE, str(run), str(out)])
            rows[title]["size_mib"] = size_of(out)
            shutil.rmtree(out)
        if LEROBOT.exists():
            dump(whole, root / "frames")
            for codec, way in WRITERS[: flags.writers]:
                out = root / "theirs"
                script = str(HERE / "lerobot_writer.py")
                command = [str(LEROBOT), script, str(root / "frames"), str(out), codec, way]
                title = f"LeRobot, {codec}, {way}"
                rows[title] = measure(command)
                rows[title]["size_mib"] = size_of(out)
                shutil.rmtree(out)
        else:
            print("LeRobot's interpreter is missing: hocket venv lerobot")
    show(rows)
    if flags.json:
        flags.json.write_text(json.dumps({"settings": vars(flags) | {"json": None}, **rows}))


def show(rows: dict[str, dict[str, Any]]) -> None:
    ours = rows["hocket"]
    names = ("seconds", "cpu s", "peak MiB", "size MiB", "x seconds", "x cpu s")
    print(" " * 28 + "".join(f"{name:>11}" for name in names))
    for title, row in rows.items():
        numbers = [row[key] for key in ("seconds", "cpu_s", "peak_mib", "size_mib")]
        numbers += [row[key] / ours[key] for key in ("seconds", "cpu_s")]
        print(f"{title:28}" + "".join(f"{number:11.1f}" for number in numbers))


if __name__ == "__main__":
    main()
