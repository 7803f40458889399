"""The work of 2,000 LIBERO episodes on one GPU: four suites x 10 tasks x 50 starts, two cameras of
256 px, a network of pi0's size (2.7 billion parameters, random weights: its cost, not its actions).

    python benchmarks/libero/headline.py                          # 394,000 steps, replan 10
    python benchmarks/libero/headline.py --replan 16
    python benchmarks/libero/headline.py --full --suites libero_10    # 260,000 steps
    python benchmarks/libero/headline.py --policy 5+2B --tasks 1 --starts 2 --lanes 2  # no GPU

Each trial ends at a length drawn from --seed, 197 steps in the mean and capped by its suite's limit
(`--full`: at that limit). Before it runs, the script measures a control step, two frames and a row
of the largest batch, each alone, and prints from them the least seconds that the work can take and
what `hocket plan` predicts. Suites run one after the other, each in a run folder below --out; what
is there is resumed or kept, so that they may be run in pieces: the sum of their seconds counts.

It needs LIBERO's data by HOCKET_LIBERO_DATA and `hocket venv libero`, or --python with LIBERO.
On a machine without a network, carry FOLDER.tar.xz of `--pack FOLDER` beside this repository: in it
are `site`, packages for another Python (LIBERO, robosuite with the Panda alone, MuJoCo, what hocket
needs; numba, matplotlib and cv2 are stubs that do nothing), and `data`, LIBERO's. NumPy, SciPy,
torch, pyarrow, rich, yaml and PIL are that machine's. Its size is printed: it was 89 MiB before the
grippers of other robots were left out, and has been unpacked on no other machine yet. There:

    tar xf FOLDER.tar.xz
    export PYTHONPATH=src:FOLDER/site HOCKET_LIBERO_DATA=FOLDER/data MUJOCO_GL=egl
    python benchmarks/libero/headline.py --python python --out runs/headline

with libglvnd's libraries (libEGL.so.1, libGLdispatch.so.0, libOpenGL.so.0) before the driver's own
in LD_LIBRARY_PATH and __EGL_VENDOR_LIBRARY_DIRS at the driver's share/glvnd/egl_vendor.d.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "serving")]

import cut_lengths  # noqa: E402
import hocket  # noqa: E402
from hocket.core.data import Batch, Row, Trial  # noqa: E402
from hocket.engine.scheduling.estimates import Latency  # noqa: E402
from hocket.engine.scheduling.model import ChunkWork, plan  # noqa: E402
from hocket.system import machine  # noqa: E402

CAMERAS = ("observation/image", "observation/wrist_image")
PIXELS = 256
ACTIONS = 16


class Costly:
    """Answers with small moves that follow from the row's noise, once its network has run."""

    def __init__(self, cost: str, replan: int, max_batch: int) -> None:
        self._module: Any = None
        self._cost = (0.0, 0.0)
        sizes: tuple[int, ...] = ()
        if cost == "pi0":
            import pi0_sized
            from hocket.adapters.policies.torch import TorchPolicy

            self._module = TorchPolicy(
                pi0_sized.make(CAMERAS),
                chunk_length=pi0_sized.CHUNK,
                device="cuda",
                fixed_shapes=True,
                graphs=True,
                max_batch=max_batch,
            )
            self._state = pi0_sized.STATE
            sizes = self._module.spec.batch_sizes
        else:
            base, row = cost.removesuffix("B").split("+")
            self._cost = (float(base) / 1e3, float(row) / 1e3)
        self.spec = hocket.PolicySpec(
            chunk_length=ACTIONS,
            action_size=7,
            replan=replan,
            cameras=CAMERAS,
            max_batch=max_batch,
            batch_sizes=sizes,
        )

    def infer(self, batch: Batch) -> np.ndarray:
        images = {key: batch.arrays[key] for key in CAMERAS}
        if self._module is None:
            time.sleep(self._cost[0] + self._cost[1] * batch.size)
        else:
            small = {key: one[:, :224, :224] for key, one in images.items()}
            state = np.zeros((batch.size, self._state), np.float32)
            arrays = {"observation/state": state, **small}
            self._module.infer(Batch(arrays=arrays, rows=batch.rows))
        return np.stack([self._moves(row) for row in batch.rows])

    def _moves(self, row: Row) -> np.ndarray:
        drawn = np.random.default_rng(row.noise_seed).uniform(-0.3, 0.3, (ACTIONS, 7))
        return drawn.astype(np.float32)

    def close(self) -> None:
        if self._module is not None:
            self._module.close()


def latencies(policy: Costly) -> dict[int, float]:
    """Seconds of a batch, by its size."""
    found, size = {}, 1
    while size <= policy.spec.max_batch:
        rows = tuple(
            Row(
                trial=Trial(suite="libero", task="", seed=seed),
                attempt=0,
                chunk=0,
                noise_seed=seed,
                prompt="",
                session="",
            )
            for seed in range(size)
        )
        image = np.zeros((size, PIXELS, PIXELS, 3), np.uint8)
        batch = Batch(arrays=dict.fromkeys(CAMERAS, image), rows=rows)
        policy.infer(batch)
        found[size] = cut_lengths.timed(lambda batch=batch: policy.infer(batch), 5)
        size *= 2
    return found


def measured(python: str, suite: str) -> dict[str, Any]:
    words = [python, str(HERE / "cut_lengths.py"), suite]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def predict(
    flags: argparse.Namespace, parts: dict[str, Any], row: dict[int, float], decisions: int
) -> None:
    """Print the bound and the plan of the work, before it is done."""
    cores, replan = flags.cores, flags.replan
    on_gpu = not any(word in parts["renderer"].lower() for word in ("llvmpipe", "soft"))
    row_s = min(seconds / size for size, seconds in row.items())
    frames_s = parts["frames_s"]
    chunk_s = replan * parts["step_s"] + (0.0 if on_gpu else frames_s)
    gpu_s = row_s + (frames_s if on_gpu else 0.0)
    rate = min(1 / gpu_s, cores / chunk_s)
    say(
        f"alone: a control step {1e3 * parts['step_s']:.1f} ms, two frames {1e3 * frames_s:.1f} ms "
        f"({parts['renderer'] or 'renderer unknown'}), a row {1e3 * row_s:.2f} ms"
    )
    say(
        f"bound: {rate:.1f} decisions/s (GPU {1 / gpu_s:.1f}, {cores} cores "
        f"{cores / chunk_s:.1f}): {decisions} decisions take {decisions / rate:.0f} s at least"
    )
    # The latency beside rendering: GL and CUDA take turns, so frames count with the rows.
    beside = {size: seconds + size * (frames_s if on_gpu else 0.0) for size, seconds in row.items()}
    work = ChunkWork(
        cores=cores,
        execute_s=replan * parts["step_s"] + frames_s,
        concurrency=1,
        max_batch=flags.max_batch,
        overlap=0.0,
    )
    (planned,) = plan((flags.lanes,), work, Latency(beside), actions_per_chunk=replan)
    say(
        f"hocket plan, {flags.lanes} lanes: {planned.chunks_per_s:.1f} decisions/s, "
        f"{decisions / planned.chunks_per_s:.0f} s"
    )


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run_suite(flags: argparse.Namespace, policy: Costly, suite: str) -> tuple[float, int, int]:
    """Seconds, steps and decisions of one suite, which is gone on with where it is there."""
    out = flags.out / f"{suite}-{flags.replan}{'-full' if flags.full else ''}"
    settings = {
        "suite": suite.removeprefix("libero_"),
        "lengths_seed": -1 if flags.full else flags.seed,
        "tasks": flags.tasks,
        "size": PIXELS,
    }
    if (out / "run.yaml").exists():
        report = hocket.resume(out, policy=policy)
    else:
        report = hocket.evaluate(
            env=f"{HERE / 'cut_lengths.py'}:CutLibero",
            env_config=settings,
            env_python=flags.python,
            policy=policy,
            episodes=flags.starts,
            lanes=flags.lanes,
            video="none",
            out=out,
        )
    steps = [episode.steps for episode in report.episodes]
    if report.overall.errors:
        raise SystemExit(f"{report.overall.errors} trials of {suite} erred: see {out}")
    decisions = sum(-(-count // flags.replan) for count in steps)
    return report.throughput.wall_s, sum(steps), decisions


def planned_work(flags: argparse.Namespace) -> tuple[int, int]:
    """Steps and decisions of the trials that the flags name."""
    drawn = cut_lengths.lengths(flags.seed, is_full=flags.full)
    names = {suite: cut_lengths.SUITES[suite][: flags.tasks] for suite in flags.suites}
    steps = [
        n
        for (suite, task, k), n in drawn.items()
        if task in names.get(suite, ()) and k < flags.starts
    ]
    return sum(steps), sum(-(-count // flags.replan) for count in steps)


# -- What a machine without a network is given -----------------------------------------------------

WHEELS = ("mujoco==3.3.0", "glfw", "pyopengl", "gymnasium", "farama-notifications", "absl-py")
WHEELS += ("etils", "cloudpickle", "msgpack", "websockets", "tyro", "docstring-parser", "shtab")
WHEELS += ("typeguard", "termcolor", "easydict", "importlib_resources", "zipp")
PARTS = ("libero", "bddl", "robosuite", "future", "past", "easydict", "termcolor")
LEFT_OUT = ("bullet_data", "demonstrations", "sawyer", "baxter", "ur5e", "iiwa", "kinova3", "jaco")
LEFT_OUT += ("robotiq_*_gripper", "rethink_gripper", "jaco_three_finger_gripper", "light_maps")
STUBS = {
    "numba": "def jit(*given, **named):\n    return given[0] if given and callable(given[0]) "
    "else lambda made: made\n\n\nnjit = jit\n",
    "cv2": "",
    "matplotlib": "from types import SimpleNamespace\n\ncm = SimpleNamespace()\n",
}


def pack(folder: Path, python: str, version: str, data: Path) -> None:
    """Lay out what to carry, and say how much it is, packed by xz as a bound of what travels."""
    site = folder / "site"
    site.mkdir(parents=True)
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
    words += ["--only-binary=:all:", "--python-version", version, "--platform"]
    subprocess.run([*words, "manylinux2014_x86_64", *WHEELS], check=True)
    (libraries,) = Path(python).parents[1].glob("lib/python*/site-packages")
    ignore = shutil.ignore_patterns(*LEFT_OUT, "__pycache__", "*.dae", "demos")
    for part in PARTS:
        if (libraries / part).is_dir() and not (site / part).exists():
            shutil.copytree(libraries / part, site / part, ignore=ignore)
    for name, text in STUBS.items():
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(text)
    shutil.copytree(data, folder / "data")
    with tarfile.open(folder.with_suffix(".tar.xz"), "w:xz") as archive:
        archive.add(folder, folder.name)
    size = folder.with_suffix(".tar.xz").stat().st_size / 2**20
    say(f"{folder}: {size:.1f} MiB in {folder.with_suffix('.tar.xz').name}")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suites", nargs="*", default=list(cut_lengths.NAMES))
    parser.add_argument("--tasks", type=int, default=10, help="the first tasks of each suite")
    parser.add_argument("--starts", type=int, default=cut_lengths.STARTS)
    parser.add_argument("--replan", type=int, default=10)
    parser.add_argument("--full", action="store_true", help="trials go on to their suite's limit")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths")
    parser.add_argument("--policy", default="pi0", help="or milliseconds of a batch: 5+2B")
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument("--cores", type=int, default=machine.cores())
    parser.add_argument("--python", default=str(ROOT / "venvs" / "libero" / "bin" / "python"))
    parser.add_argument("--out", type=Path, default=Path("runs/headline"))
    parser.add_argument("--dry-run", action="store_true", help="measure and predict alone")
    parser.add_argument("--pack", type=Path, help="lay out here what another machine is given")
    parser.add_argument("--pack-python", default="3.12", help="the Python of that machine")
    return parser.parse_args(arguments)


def main() -> int:
    flags = parse()
    if flags.pack:
        pack(flags.pack, flags.python, flags.pack_python, Path(os.environ["HOCKET_LIBERO_DATA"]))
        return 0
    policy = Costly(flags.policy, flags.replan, flags.max_batch)
    steps, decisions = planned_work(flags)
    say(
        f"{steps} steps, {decisions} decisions of {flags.replan} steps, in {len(flags.suites)} runs"
    )
    predict(flags, measured(flags.python, flags.suites[0]), latencies(policy), decisions)
    if flags.dry_run:
        return 0
    seconds = 0.0
    done = 0
    for suite in flags.suites:
        wall, found, count = run_suite(flags, policy, suite)
        say(f"{suite}: {found} steps, {count} decisions in {wall:.0f} s: {count / wall:.1f} /s")
        seconds, done = seconds + wall, done + found
    say(
        f"{done} steps in {seconds:.0f} s: {done / seconds:.0f} steps/s, "
        f"{decisions / seconds:.1f} decisions/s"
    )
    return int(done != steps)


if __name__ == "__main__":
    sys.exit(main())
