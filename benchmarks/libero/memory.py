"""How much memory workers of LIBERO take, and how many of them `--lanes auto` starts.

    python benchmarks/libero/memory.py --suites spatial 10

Each suite is run in two lanes, so that a worker builds one scene after another; the largest size
seen of any worker is told. Then the rule behind `--lanes auto` is asked what it would choose on 24
GiB. Needs hocket venv libero and HOCKET_LIBERO_DATA.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
from pathlib import Path

import numpy as np

from hocket.core.data import Actions, Batch
from hocket.core.specs import PolicySpec
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.probe import Probe, probe
from hocket.runs.run import Run
from hocket.system import machine
from others import worker_memory

GIB = 1 << 30
LIBERO = Path(__file__).parents[2] / "venvs" / "libero" / "bin" / "python"


class Looking:
    """A policy that wants every camera and stands still."""

    spec = PolicySpec(chunk_length=16, action_size=7, batch_invariant=True)

    def infer(self, batch: Batch) -> Actions:
        """Nothing, for each row."""
        return Actions(np.zeros((batch.size, 16, 7), np.float32))

    def close(self) -> None:
        """Nothing is held."""


class Scales:
    """Weighs all workers below this process, again and again, and keeps the heaviest."""

    def __init__(self) -> None:
        self.resident = self.proportional = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._weigh)

    def __enter__(self) -> Scales:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _weigh(self) -> None:
        while not self._is_over.wait(0.5):
            for sizes in worker_memory():
                self.resident = max(self.resident, sizes["Rss"])
                self.proportional = max(self.proportional, sizes["Pss"])


def config_of(suite: str, *, hard: bool) -> EvalConfig:
    return EvalConfig.from_plain(
        {
            "env": (f"libero:{suite}",),
            "policy": "zero",
            "episodes": 2,
            "lanes": 2,
            "max_steps": 16,
            "record": "none",
            "video": "none",
            "env_python": str(LIBERO),
            "env_config": {"hard_reset": hard},
        }
    )


def run(suite: str, *, hard: bool) -> Scales:
    with tempfile.TemporaryDirectory() as folder, Scales() as scales:
        with Run.new(config_of(suite, hard=hard), Path(folder, "run")) as made:
            report = made.finish(policy=Looking())
        assert not report.overall.errors
    return scales


def look(suite: str) -> Probe:
    config = config_of(suite, hard=False)
    policy = Looking()
    trial = Assembly(config).plan(config.seed, config.episodes)[0]
    assembly = Assembly(config, config.lanes)
    with contextlib.closing(assembly.runtime()) as runtime:
        return probe(runtime, assembly.worker(policy.spec), policy, trial, replan=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suites", nargs="+", default=["spatial", "10"])
    parser.add_argument("--memory-gib", type=float, default=24)
    flags = parser.parse_args()
    memory = round(flags.memory_gib * GIB)
    for suite in flags.suites:
        seen = look(suite)
        assert seen.memory is not None
        chosen = {
            cores: seen.lanes(cores=cores, memory=memory, trials=500, policy=Looking())
            for cores in (machine.cores(), 8, 64)
        }
        most = max(chosen.values())
        for hard in (False, True):
            scales = run(suite, hard=hard)
            print(
                f"libero:{suite}, {'hard' if hard else 'soft'} resets: a worker takes "
                f"{scales.resident / GIB:.2f} GiB at most, {scales.proportional / GIB:.2f} GiB "
                f"where what several share is counted once; {most} of them "
                f"{most * scales.proportional / GIB:.1f} GiB"
            )
        print(
            f"libero:{suite}, --lanes auto on {flags.memory_gib:g} GiB, from a first look of "
            f"{seen.memory / GIB:.2f} GiB: "
            + ", ".join(f"{lanes} lanes with {cores} cores" for cores, lanes in chosen.items())
        )


if __name__ == "__main__":
    main()
