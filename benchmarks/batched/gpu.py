"""MJX push on a GPU with a torch policy on the same GPU: where the time of a chunk goes.

    python benchmarks/batched/gpu.py [--rows 1024] [--json FILE]

First what hocket itself takes: a simulator and a policy that do nothing, the CPU time of the whole
process for each chunk and row, from 256 to 4,096 rows, from the first batch on; what starting takes
is told apart. Then the real ones. Physics is the time
inside the compiled step until it is done; transfers are actions to the device, rewards from it,
and chunks from the policy; inference is the module itself. What is left of the whole is Python: too
little of it where an inference overlapped with physics. Where JAX and torch have no GPU, both run
on the CPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from engine import Rolled, roll
from hocket.adapters.envs.mjx import TASKS
from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Actions, Array, Batch
from hocket.core.specs import TaskInfo
from sleeper import SleepingPolicy

CHUNK = 16


class Clocks:
    """Seconds by what they were spent on; of one run at a time."""

    seconds: ClassVar[dict[str, float]] = {}

    @classmethod
    def add(cls, name: str, since: float) -> float:
        now = time.perf_counter()
        cls.seconds[name] = cls.seconds.get(name, 0.0) + now - since
        return now


@dataclass(frozen=True, slots=True, kw_only=True)
class NoConfig:
    """Nothing to set."""


class TimedPush:
    """The push task, with each part of a step timed apart, which costs a little more waiting."""

    Config: ClassVar = NoConfig

    def __init__(self, argument: str, config: NoConfig) -> None:
        del argument, config

    def tasks(self) -> list[TaskInfo]:
        return [TASKS["push"].info]

    def make_rows(self, task: str, rows: int) -> Any:
        import jax

        from hocket.adapters.envs.mjx.jax import JaxRows

        class Timed(JaxRows):
            def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
                since = time.perf_counter()
                super().reset(rows, tasks, seeds)
                jax.block_until_ready(self._state)
                Clocks.add("resets", since)

            def step(self, actions: Array, active: Array) -> RowSteps:
                since = time.perf_counter()
                put = jax.device_put((np.asarray(actions, np.float32), active))
                jax.block_until_ready(put)
                since = Clocks.add("transfers", since)
                self._state, self._seen, apart = self._step(self._state, self._goal, *put)
                jax.block_until_ready(apart)
                since = Clocks.add("physics", since)
                distance = np.asarray(apart).astype(np.float64)
                none = np.zeros(self.rows, np.bool_)
                steps = RowSteps(-distance, none, none, distance < self._task.near)
                Clocks.add("transfers", since)
                return steps

            def observe(self, rows: Array) -> dict[str, Array]:
                since = time.perf_counter()
                seen = super().observe(rows)
                Clocks.add("observations", since)
                return seen

        return Timed(TASKS[task], rows)


class TorchPush:
    """A network of three layers on the GPU, fed with what is on the GPU already."""

    reads_device_arrays = True

    def __init__(self, *, max_batch: int, width: int = 1024) -> None:
        import torch

        from hocket.core.specs import PolicySpec

        self._torch = torch
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        layers = [torch.nn.Linear(10, width), torch.nn.ReLU(), torch.nn.Linear(width, width)]
        layers += [torch.nn.ReLU(), torch.nn.Linear(width, CHUNK * 3), torch.nn.Tanh()]
        self._net = torch.nn.Sequential(*layers).to(self._device)
        self.spec = PolicySpec(chunk_length=CHUNK, action_size=3, max_batch=max_batch)
        self.on_device = 0

    def infer(self, batch: Batch) -> Actions:
        torch = self._torch
        since = time.perf_counter()
        with torch.inference_mode():
            given: Any = batch.arrays["observation/state"]
            self.on_device += isinstance(given, torch.Tensor)
            seen = torch.as_tensor(given, device=self._device)
            out = self._net(seen).reshape(batch.size, CHUNK, 3)
            if self._device == "cuda":
                torch.cuda.synchronize()
            since = Clocks.add("inference", since)
            values = out.cpu().numpy()
        Clocks.add("transfers", since)
        return Actions(values)

    def close(self) -> None:
        """Nothing to let go of."""


def measure_own(rows: int) -> dict[str, Any]:
    """What hocket takes for a chunk of a row, with a simulator and a policy that do nothing."""
    policy = SleepingPolicy(base_s=0.0, chunk=CHUNK, max_batch=rows)
    config = {"step_s": 0.0, "lengths": (160,)}
    best: Rolled | None = None
    for _ in range(3):
        done = roll(
            "sleeper:Sleepers",
            policy,
            rows=rows,
            episodes=16 * rows,
            config=config,
            task="sleep",
        )
        best = done if best is None or done.counted.cpu_s < best.counted.cpu_s else best
    assert best is not None
    return {
        "rows": rows,
        "own_cpu_us_per_chunk": round(1e6 * best.counted.cpu_s / best.counted.chunks, 2),
        "start_cpu_ms": round(1e3 * (best.cpu_s - best.counted.cpu_s), 1),
        "chunks": best.counted.chunks,
        "batches": best.counted.batches,
    }


def measure_push(rows: int, episodes: int) -> dict[str, Any]:
    policy = TorchPush(max_batch=rows)
    roll("gpu:TimedPush", policy, rows=rows, episodes=rows, config={}, task="push")
    Clocks.seconds.clear()
    policy.on_device = 0
    done = roll("gpu:TimedPush", policy, rows=rows, episodes=episodes, config={}, task="push")
    counted, compiled_s = done.counted, done.wall_s - done.counted.wall_s
    chunk = 1e6 / counted.chunks
    return {
        "rows": rows,
        "row_steps_per_s": round(counted.steps / counted.wall_s),
        "us_per_chunk": round(counted.wall_s * chunk, 2),
        **{f"{k}_us": round(v * chunk, 2) for k, v in sorted(Clocks.seconds.items())},
        "python_us": round((counted.wall_s - sum(Clocks.seconds.values())) * chunk, 2),
        "start_s": round(compiled_s, 1),
        "mean_batch": round(counted.inferred / counted.batches, 1),
        "batches_on_device": f"{policy.on_device} of {counted.batches} and warm-up",
        "complete": counted.complete,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[256, 1024, 4096])
    parser.add_argument("--episodes-per-row", type=int, default=2)
    parser.add_argument("--no-physics", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict[str, Any] = {"own": [], "push": []}
    for rows in args.rows:
        results["own"].append(measure_own(rows))
        print("hocket alone:", results["own"][-1], flush=True)
    if not args.no_physics:
        import jax
        import torch

        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
        print("JAX", jax.__version__, jax.devices(), "torch", torch.__version__, gpu, flush=True)
        for rows in args.rows:
            results["push"].append(measure_push(rows, args.episodes_per_row * rows))
            print("MJX push:", results["push"][-1], flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    # Under its own name, by which the engine finds the simulator: there is one set of clocks then.
    import gpu

    gpu.main()
