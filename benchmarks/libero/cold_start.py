"""A small evaluation from its command to its exit: hocket, lerobot-eval and vla-eval.

    python benchmarks/libero/cold_start.py [--vla-eval path/to/site-packages]

One task of libero_spatial, two episodes of twenty steps (--episodes, --steps), two 256 px cameras,
software rendering; --zeros leaves out the ACT and lerobot-eval.
lerobot-eval and hocket run the same ACT with random weights; vla-eval a policy that answers zeros
at no cost, and hocket its own such. Each is started cold, in turn, as often as --repeats says, and
as it comes: lerobot-eval films its episodes, vla-eval speaks to its policy over a socket, and both
look at every step, where hocket looks when the policy does. Seconds of CPU are those of all
processes; `first line` is what the user waits for until anything is printed.

Needs `hocket venv libero lerobot` and HOCKET_LIBERO_DATA; vla-eval is left out unless it is given
(pip install --target FOLDER vla-eval==0.8.0).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBERO = str(ROOT / "venvs" / "libero" / "bin" / "python")
LEROBOT = str(ROOT / "venvs" / "lerobot" / "bin" / "python")
PEERS = str(Path(__file__).with_name("cold_peers.py"))
TASK = "libero:pick_up_the_black_bowl_between_the_plate_and_the_ramekin_and_place_it_on_the_plate"


def commands(folder: Path, act: str, options: argparse.Namespace) -> dict[str, list[str]]:
    """What is typed, by name."""
    site, episodes, steps = options.vla_eval, str(options.episodes), str(options.steps)
    ours = [sys.executable, "-m", "hocket", "eval", "--env", TASK, "--env-python", LIBERO]
    ours += ["--env.size", "256", "--episodes", episodes, "--max-steps", steps, "--lanes", "2"]
    ours += ["--video", "none", "--out"]
    learned = ["--policy", f"lerobot:{act}", "--policy-python", LEROBOT]
    found = {
        "hocket, ACT": [*ours, str(folder / "a"), *learned],
        "lerobot-eval, ACT": [LEROBOT, PEERS, "lerobot", act, episodes, steps, str(folder)],
        "hocket, zeros": [*ours, str(folder / "b"), "--policy", "zero"],
    }
    if site:
        found["vla-eval, zeros"] = [LEROBOT, PEERS, "vla-eval", site, episodes, steps, str(folder)]
    return {name: words for name, words in found.items() if "zeros" in name or not options.zeros}


def timed(words: list[str]) -> tuple[float, float, float]:
    """Seconds of CPU, of wall time, and until the first line."""
    variables = {**os.environ, "MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # nobody compiles a package at every start
    before, began = os.times(), time.perf_counter()
    process = subprocess.Popen(
        words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said, first = [], 0.0
    for line in process.stdout:
        first = first or time.perf_counter() - began
        said.append(line)
    if process.wait():
        raise SystemExit("".join(said[-60:]))
    wall, after = time.perf_counter() - began, os.times()
    cpu = after.children_user + after.children_system
    return cpu - before.children_user - before.children_system, wall, first


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vla-eval", default="", metavar="SITE")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--zeros", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        act = str(Path(name) / "act")
        subprocess.run([LEROBOT, PEERS, "save", act], check=True, capture_output=True)
        for repeat in range(options.repeats):
            folder = Path(name) / str(repeat)
            folder.mkdir()
            for side, words in commands(folder, act, options).items():
                found.setdefault(side, []).append(timed(words))
                print(f"{side:<20} CPU {found[side][-1][0]:6.1f} s", flush=True)
    spent = {}
    for side, times in found.items():
        cpu, wall, first = (statistics.median(part) for part in zip(*times, strict=True))
        print(f"{side:<20} CPU {cpu:6.1f} s  wall {wall:6.1f} s  first line {first:5.1f} s")
        spent[side] = cpu
    pairs = [("hocket, ACT", "lerobot-eval, ACT"), ("hocket, zeros", "vla-eval, zeros")]
    ratios = {theirs: spent[theirs] / spent[ours] for ours, theirs in pairs if theirs in spent}
    for theirs, ratio in ratios.items():
        print(f"{theirs}: {ratio:.2f} times hocket's CPU (more than 1 is wanted)")
    return int(min(ratios.values()) <= 1)


if __name__ == "__main__":
    sys.exit(main())
