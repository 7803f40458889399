"""Serving a pi0-sized model from one GPU: eager and CUDA graphs, batch sizes 1 to 64.

    python benchmarks/serving/gpu.py [--seconds 10] [--json FILE]

Prints the bare forward by batch size, then what stock OpenPI clients (three 224 px images in each
request, one request after the other, in processes of their own) get of `hocket serve`. Throughput
with 32 clients is to be at least 5 times that of batches of one in eager mode.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import clients
from hocket.adapters.policies.torch import TorchPolicy
from hocket.core.codec import pack
from hocket.core.data import Batch, Row, Trial
from hocket.core.specs import ArraySpec
from hocket.serve.backend import PolicyBackend, PolicyOptions
from hocket.serve.metrics import Metrics
from hocket.serve.server import PolicyServer, ServeOptions

SIZES = (1, 2, 4, 8, 16, 32, 64)
IMAGE = ArraySpec(shape=(224, 224, 3), dtype="|u1")


def inputs() -> dict[str, ArraySpec]:
    from pi0_sized import IMAGES, STATE

    return {
        **dict.fromkeys(IMAGES, IMAGE),
        "observation/state": ArraySpec(shape=(STATE,), dtype="<f4"),
    }


def request() -> bytes:
    rng = np.random.default_rng(0)
    return pack(
        {
            key: np.zeros(spec.shape, np.float32)
            if len(spec.shape) == 1
            else rng.integers(0, 256, spec.shape, np.uint8)
            for key, spec in inputs().items()
        }
        | {"prompt": "put the bowl on the plate"}
    )


def policy(module: Any, *, graphs: bool, max_batch: int) -> TorchPolicy:
    return TorchPolicy(
        module,
        chunk_length=module.chunk_length,
        action_size=module.action_size,
        inputs=inputs(),
        device="cuda",
        fixed_shapes=[size for size in SIZES if size <= max_batch],
        graphs=graphs,
        max_batch=max_batch,
    )


def forward_ms(made: TorchPolicy, size: int) -> float:
    """Median of the whole call: copies to the device and back included."""
    trial = Trial(suite="s", task="t", seed=0)
    rows = tuple(
        Row(trial=trial, attempt=0, chunk=0, noise_seed=i, prompt="", session="")
        for i in range(size)
    )
    arrays = {key: np.zeros((size, *spec.shape), spec.dtype) for key, spec in inputs().items()}
    times = []
    for _ in range(8):
        began = time.perf_counter()
        made.infer(Batch(arrays=arrays, rows=rows))
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times[2:])


def drive_many(pipe: Any, port: int, count: int, seconds: float) -> None:
    clients.request = request
    clients.drive(pipe, port, count, seconds)


def serve(made: TorchPolicy, count: int, seconds: float) -> dict[str, float]:
    """Requests per second and latencies of `count` stock clients, the first quarter left out."""
    found: list[tuple[float, float]] = []

    def drive(port: int) -> None:
        with clients.process(drive_many, port, count, seconds) as pipe:
            found.extend(pipe.recv())

    async def main() -> None:
        metrics = Metrics()
        backend = PolicyBackend(made, PolicyOptions(name="pi0-sized"), metrics)
        async with PolicyServer(backend, ServeOptions(port=0), metrics) as server:
            await asyncio.to_thread(drive, server.port)

    asyncio.run(main())
    start = min(began for began, _ in found) + seconds / 4
    counted = sorted(took for began, took in found if began >= start)
    last = max(began + took for began, took in found)
    done = sum(1 for began, took in found if began + took >= start)
    return {
        "requests_per_s": done / (last - start),
        "p50_ms": 1e3 * statistics.median(counted),
        "p99_ms": 1e3 * counted[min(len(counted) - 1, int(0.99 * len(counted)))],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    from pi0_sized import make

    began = time.perf_counter()
    module = make()
    count = sum(parameter.numel() for parameter in module.parameters())
    print(f"{count / 1e9:.2f} billion parameters, built in {time.perf_counter() - began:.1f} s")
    modes = {
        "eager": policy(module, graphs=False, max_batch=64),
        "graphs": policy(module, graphs=True, max_batch=64),
    }
    forwards = {
        name: {size: forward_ms(made, size) for size in SIZES} for name, made in modes.items()
    }
    print("ms per batch  " + "".join(f"{size:>9}" for size in SIZES))
    for name, row in forwards.items():
        print(f"  {name:<12}" + "".join(f"{row[size]:>9.1f}" for size in SIZES))
    served: dict[str, dict[str, float]] = {}
    plan = [("eager, batches of 1", policy(module, graphs=False, max_batch=1), 32)]
    plan += [
        (f"{name}, {n} clients", made, n) for name, made in modes.items() for n in (1, 8, 32, 64)
    ]
    for name, made, n in plan:
        served[name] = serve(made, n, flags.seconds)
        row = served[name]
        print(
            f"  {name:<22} {row['requests_per_s']:8.1f} requests/s   p50 {row['p50_ms']:8.1f} ms   "
            f"p99 {row['p99_ms']:8.1f} ms",
            flush=True,
        )
    base = served["eager, batches of 1"]["requests_per_s"]
    gains = {name: row["requests_per_s"] / base for name, row in served.items()}
    for name in ("eager, 32 clients", "graphs, 32 clients"):
        print(f"{name} / eager, batches of 1: {gains[name]:.1f}x (at least 5x)")
    if flags.json:
        flags.json.write_text(json.dumps({"forward_ms": forwards, "served": served}, indent=1))
    return 0 if max(gains["eager, 32 clients"], gains["graphs, 32 clients"]) >= 5 else 1


if __name__ == "__main__":
    # Clients fork nothing of the GPU's: they are spawned, and a thread here waits for them.
    threading.current_thread().name = "serving"
    sys.exit(main())
