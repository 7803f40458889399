"""Are LIBERO's episodes those of vla-eval's own loop? For each of the 40 tasks, one episode of 20
steps is played three times with the same actions: by vla-eval's loop, in a process of its own; as
`vla-eval:libero`, whose process has played another episode before; and as `libero:` with
`--env.start-scheme vla-eval`, which draws only where somebody looks. Pictures of both cameras and
places of hand and fingers of all 21 observations are compared to the bit.

    python benchmarks/libero/vla_eval_equality.py DATA [--suites libero_goal ...] [--tasks 0 1]

DATA is LIBERO's data with start states as an .npz. It needs torch here, and `hocket venv libero
vla-eval`. A line is printed for each task; the exit code is 1 where any differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.interpreters import with_packages_of  # noqa: E402

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
SCRIPT = ROOT / "tests" / "support" / "vla_eval_libero.py"
EPISODE, BEFORE = 3, 11


def play(
    python: str, kind: str, data: Path, out: Path, suite: str, task: int
) -> dict[str, np.ndarray]:
    out.mkdir()
    episodes = [EPISODE] if kind == "own" else [BEFORE, EPISODE]
    words = [python, SCRIPT, kind, data, out, suite, task, *episodes]
    subprocess.run([str(word) for word in words], check=True, stderr=subprocess.DEVNULL)
    with np.load(out / f"{EPISODE}.npz") as file:
        return {key: file[key] for key in file.files}


def differences(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    found = []
    for key in ("agentview", "wrist", "states"):
        here, there = one[key], other[key]
        if key == "states":  # the three in between are a rotation, which vla-eval rounds to 32 bit
            here, there = np.delete(here, [3, 4, 5], 1), np.delete(there, [3, 4, 5], 1)
        if not np.array_equal(here, there):
            found.append(key)
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--suites", nargs="*", default=SUITES)
    parser.add_argument("--tasks", nargs="*", type=int, default=range(10))
    args = parser.parse_args()
    equal = 0
    with tempfile.TemporaryDirectory() as folder:
        python = with_packages_of(Path(folder) / "venv", "libero", "vla-eval")
        for suite in args.suites:
            for task in args.tasks:
                place = Path(folder) / f"{suite}-{task}"
                place.mkdir()
                own, ours, native = (
                    play(python, kind, args.data, place / kind, suite, task)
                    for kind in ("own", "ours", "native")
                )
                wrong = {"vla-eval:libero": differences(own, ours)}
                wrong["libero:"] = differences(own, native)
                told = [
                    f"{name} differs in {', '.join(keys)}" for name, keys in wrong.items() if keys
                ]
                equal += not told
                rows = len(own["states"])
                sys.stdout.write(
                    f"{suite} {task}: {'; '.join(told) or 'equal'} ({rows} observations)\n"
                )
                sys.stdout.flush()
    planned = len(args.suites) * len(args.tasks)
    sys.stdout.write(f"{equal} of {planned} tasks equal\n")
    return equal != planned


if __name__ == "__main__":
    sys.exit(main())
