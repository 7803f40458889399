"""Serving: what batching across connections gives to clients that know nothing of it.

    python benchmarks/serving/clients.py [--clients 32] [--seconds 12] [--json]

The policy is modelled: a batch of B takes 75 + 8.5 B ms. Clients speak stock OpenPI, one request
after the other, with two 224 px images in each; they run in processes of their own. The same
clients drive (a) a server that infers one request at a time and (b) hocket's, one after the other.

Limits: at least 5x the throughput, p99 latency under two batch times; with one client at most 2 ms
above the bare forward at the median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from hocket.core.codec import pack, unpack
from hocket.core.data import Actions, Batch
from hocket.core.specs import ArraySpec, PolicySpec
from hocket.serve.backend import PolicyBackend, PolicyOptions
from hocket.serve.metrics import Metrics
from hocket.serve.server import PolicyServer, ServeOptions

BASE_S, ROW_S = 0.075, 0.0085
MIN_SPEED_UP = 5.0
MAX_BATCH_TIMES = 2.0
MAX_OVERHEAD_MS = 2.0
IMAGE = ArraySpec(shape=(224, 224, 3), dtype="|u1")


def forward_s(batch: int) -> float:
    """Seconds that the modelled policy takes."""
    return BASE_S + ROW_S * batch


class Modelled:
    """Takes the time of a model, and computes nothing."""

    spec = PolicySpec(
        chunk_length=10,
        action_size=7,
        inputs={
            "observation/image": IMAGE,
            "observation/wrist_image": IMAGE,
            "observation/state": ArraySpec(shape=(8,), dtype="<f4"),
        },
        max_batch=64,
    )

    def infer(self, batch: Batch) -> Actions:
        time.sleep(forward_s(batch.size))
        return Actions(np.zeros((batch.size, 10, 7), np.float32))

    def close(self) -> None:
        """Nothing is held."""


def request() -> bytes:
    """What a LIBERO client sends."""
    rng = np.random.default_rng(0)
    return pack(
        {
            "observation/image": rng.integers(0, 256, (224, 224, 3), np.uint8),
            "observation/wrist_image": rng.integers(0, 256, (224, 224, 3), np.uint8),
            "observation/state": np.zeros(8, np.float32),
            "prompt": "put the bowl on the plate",
        }
    )


# -- Servers, each in a process of its own -------------------------------------------------------


def serve_one_at_a_time(pipe: Connection) -> None:
    """What a stock server does: every request is a forward of its own, one after the other."""
    one = threading.Lock()

    def answer(connection: ServerConnection) -> None:
        connection.send(pack({}))
        for frame in connection:
            with one:
                unpack(frame)
                time.sleep(forward_s(1))
            connection.send(pack({"actions": np.zeros((10, 7), np.float32)}))

    with serve(answer, "127.0.0.1", 0, compression=None, max_size=None) as server:
        pipe.send(server.socket.getsockname()[1])
        server.serve_forever()


def serve_batched(pipe: Connection) -> None:
    """hocket's server."""

    async def main() -> None:
        metrics = Metrics()
        backend = PolicyBackend(Modelled(), PolicyOptions(name="modelled"), metrics)
        async with PolicyServer(backend, ServeOptions(port=0), metrics) as server:
            pipe.send(server.port)
            await asyncio.Event().wait()

    asyncio.run(main())


@contextmanager
def process(target: Any, *arguments: Any) -> Iterator[Connection]:
    """A child process with a pipe to it, ended with the block."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=target, args=(there, *arguments), daemon=True)
    child.start()
    try:
        yield here
    finally:
        child.terminate()
        child.join()


# -- Clients -------------------------------------------------------------------------------------


def drive(pipe: Connection, port: int, clients: int, seconds: float) -> None:
    """Closed-loop clients on threads; sends back when each request began and how long it took."""
    frame = request()
    latencies: list[tuple[float, float]] = []
    gate = threading.Barrier(clients)

    def one() -> None:
        with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None) as connection:
            connection.recv()
            gate.wait()
            until = time.perf_counter() + seconds
            while (began := time.perf_counter()) < until:
                connection.send(frame)
                reply = connection.recv()
                assert isinstance(reply, bytes), reply
                latencies.append((began, time.perf_counter() - began))

    threads = [threading.Thread(target=one) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(latencies)


def bare_forward_ms(repeats: int = 40) -> float:
    """The median of the forward alone, as this machine's clock wakes it."""
    batch = Batch(arrays={}, rows=(), pad=1)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        Modelled().infer(batch)
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def measure(server: Any, clients: int, seconds: float) -> dict[str, float]:
    """Requests per second and latencies of one server under so many clients.

    The first quarter of the time is not counted: clients start at once and have to spread first.
    """
    with process(server) as to_server:
        port = to_server.recv()
        with process(drive, port, clients, seconds) as to_clients:
            found = to_clients.recv()
    start = min(began for began, _ in found) + seconds / 4
    counted = sorted(took for began, took in found if began >= start)
    last = max(began + took for began, took in found)
    done = sum(1 for began, took in found if began + took >= start)
    return {
        "requests_per_s": round(done / (last - start), 2),
        "p50_ms": round(1e3 * statistics.median(counted), 2),
        "p99_ms": round(1e3 * counted[min(len(counted) - 1, int(0.99 * len(counted)))], 2),
        "requests": len(counted),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    plain = measure(serve_one_at_a_time, flags.clients, flags.seconds)
    batched = measure(serve_batched, flags.clients, flags.seconds)
    alone = measure(serve_batched, 1, flags.seconds / 2)
    bare_ms = bare_forward_ms()
    batch_ms = 1e3 * forward_s(flags.clients)
    result = {
        "one_at_a_time": plain,
        "batched": batched,
        "alone": alone,
        "speed_up": round(batched["requests_per_s"] / plain["requests_per_s"], 2),
        "p99_in_batch_times": round(batched["p99_ms"] / batch_ms, 2),
        "overhead_alone_ms": round(alone["p50_ms"] - bare_ms, 2),
    }
    if flags.json:
        print(json.dumps(result))
    else:
        print(f"{flags.clients} stock clients, a policy of 75 + 8.5 B ms")
        for name in ("one_at_a_time", "batched", "alone"):
            row: Any = result[name]
            print(
                f"  {name:<14} {row['requests_per_s']:7.2f} requests/s   "
                f"p50 {row['p50_ms']:8.2f} ms   p99 {row['p99_ms']:8.2f} ms"
            )
        print(f"  speed-up {result['speed_up']} (at least {MIN_SPEED_UP})")
        print(f"  p99 in batch times {result['p99_in_batch_times']} (under {MAX_BATCH_TIMES})")
        print(f"  alone, above the forward: {result['overhead_alone_ms']} ms (at most 2)")
    good = (
        result["speed_up"] >= MIN_SPEED_UP
        and result["p99_in_batch_times"] < MAX_BATCH_TIMES
        and result["overhead_alone_ms"] <= MAX_OVERHEAD_MS
    )
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
