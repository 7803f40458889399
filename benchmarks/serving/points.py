"""`hocket serve` and openpi's own loop at twelve points, one after the other in one run.

    python benchmarks/serving/points.py [--model pi0|modelled] [--seconds 20] [--json FILE]

Stock clients, in processes of their own, send one observation after the other: closed loop, with 1
to 256 clients that each ask again once they have an answer, and open loop, where 64 clients ask at
random times at a share of what 64 closed ones got, whether they have their answers or not. `openpi`
is the loop of openpi's own server: it unpacks, infers and packs on the event loop, one request at a
time. With `modelled` a batch of B takes 75 + 8.5 B ms and computes nothing; `pi0` is a module of
pi0's size on a GPU.

Then a flood: 8 honest clients beside one that keeps 32 connections busy, and the share of an honest
client against an equal one. And the CPU that an idle server takes, with 1,000 connections open.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

import clients
from hocket.core.codec import pack, unpack
from hocket.core.data import Batch, Row, Trial
from hocket.serve.backend import PolicyBackend, PolicyOptions
from hocket.serve.metrics import Metrics
from hocket.serve.server import PolicyServer, ServeOptions

CLOSED = (1, 4, 8, 16, 32, 64, 128, 256)
OPEN = (0.3, 0.5, 0.7, 0.9)
OPEN_CLIENTS = 64
PROCESSES = max(1, min(8, (os.cpu_count() or 2) // 2))
IDLE = 1000


# -- Clients, in processes of their own ------------------------------------------------------------


def drive(
    pipe: Any, port: int, frame: bytes, count: int, rate: float, seconds: float, seed: int
) -> None:
    """`count` clients of one process; `rate` is requests/s of each, 0 for closed loop. Sends back
    when each request was due, and how long its answer took from then."""
    took: list[tuple[float, float]] = []

    async def one(connection: ClientConnection, rng: random.Random, until: float) -> None:
        due = time.perf_counter()
        while True:
            due = due + rng.expovariate(rate) if rate else time.perf_counter()
            if due >= until:
                return
            await asyncio.sleep(due - time.perf_counter())
            await connection.send(frame)
            reply = await connection.recv()
            assert isinstance(reply, bytes), reply
            took.append((due, time.perf_counter() - due))

    async def main() -> None:
        opening = [
            connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None, open_timeout=None)
            for _ in range(count)
        ]
        connections = await asyncio.gather(*opening)
        for connection in connections:
            await connection.recv()
        pipe.send("ready")
        pipe.recv()
        until = time.perf_counter() + seconds
        rngs = [random.Random(seed + i) for i in range(count)]
        await asyncio.gather(*(one(c, r, until) for c, r in zip(connections, rngs, strict=True)))

    asyncio.run(main())
    pipe.send(took)


def measure(
    port: int, frame: bytes, groups: list[int], rate: float, seconds: float
) -> list[list[tuple[float, float]]]:
    """What each group of clients saw; a group is a process."""
    with contextlib.ExitStack() as stack:
        pipes = [
            stack.enter_context(
                clients.process(drive, port, frame, count, rate, seconds, 1000 * number)
            )
            for number, count in enumerate(groups)
        ]
        for pipe in pipes:
            pipe.recv()
        for pipe in pipes:
            pipe.send("go")
        return [pipe.recv() for pipe in pipes]


def row(found: list[list[tuple[float, float]]], seconds: float) -> dict[str, float]:
    """Requests/s and latencies; the first quarter is left out."""
    every = [one for group in found for one in group]
    start = min(due for due, _ in every) + seconds / 4
    took = sorted(t for due, t in every if due >= start)
    last = max(due + t for due, t in every)
    done = sum(due + t >= start for due, t in every)

    def at(share: float) -> float:
        return 1e3 * took[min(len(took) - 1, int(share * len(took)))]

    return {
        "requests_per_s": done / (last - start),
        **{f"p{round(100 * share)}_ms": at(share) for share in (0.5, 0.95, 0.99)},
    }


# -- Servers ---------------------------------------------------------------------------------------


async def hocket_server(policy: Any, use: Callable[[int], Any]) -> Any:
    metrics = Metrics()
    backend = PolicyBackend(policy, PolicyOptions(name="points"), metrics)
    async with PolicyServer(backend, ServeOptions(port=0, max_connections=2048), metrics) as server:
        return await asyncio.to_thread(use, server.port)


async def openpi_server(policy: Any, use: Callable[[int], Any]) -> Any:
    """openpi's loop: everything on the event loop, one request at a time."""
    trial = Trial(suite="s", task="t", seed=0)
    blank = Row(trial=trial, attempt=0, chunk=0, noise_seed=0, prompt="", session="")

    async def attend(connection: ServerConnection) -> None:
        await connection.send(pack({}))
        with contextlib.suppress(ConnectionClosed):
            await answer(connection)

    async def answer(connection: ServerConnection) -> None:
        async for frame in connection:
            found = unpack(frame)
            arrays = {key: np.asarray(found[key])[None] for key in policy.spec.inputs}
            answer = policy.infer(Batch(arrays=arrays, rows=(blank,)))
            await connection.send(pack({"actions": np.asarray(answer.values)[0]}))

    async with serve(attend, "127.0.0.1", 0, compression=None, max_size=None) as server:
        return await asyncio.to_thread(use, server.sockets[0].getsockname()[1])


SERVERS = {"hocket": hocket_server, "openpi": openpi_server}


def spread(count: int) -> list[int]:
    """Clients by process."""
    used = min(count, PROCESSES)
    return [count // used + (i < count % used) for i in range(used)]


def forward_ms(policy: Any) -> float:
    """The bare forward of one row, at the median."""
    trial = Trial(suite="s", task="t", seed=0)
    blank = Row(trial=trial, attempt=0, chunk=0, noise_seed=0, prompt="", session="")
    arrays = {k: np.zeros((1, *s.shape), s.dtype) for k, s in policy.spec.inputs.items()}
    times = []
    for _ in range(12):
        began = time.perf_counter()
        policy.infer(Batch(arrays=arrays, rows=(blank,)))
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times[3:])


def flood(port: int, frame: bytes, seconds: float) -> float:
    """What an honest client gets beside a flood, of an equal share of 40 connections."""
    groups = measure(port, frame, [8, 32], 0.0, seconds)
    honest, all_ = len(groups[0]) / 8, sum(map(len, groups)) / 40
    return honest / all_


def idle(port: int, frame: bytes, seconds: float) -> float:
    """The share of a core that this process takes while connections are open that ask nothing."""
    del frame

    async def main() -> float:
        opened: list[ClientConnection] = []
        for _ in range(IDLE):
            opened.append(await connect(f"ws://127.0.0.1:{port}", compression=None))
            await opened[-1].recv()
        began, used = time.perf_counter(), cpu_s()
        await asyncio.sleep(seconds)
        share = (cpu_s() - used) / (time.perf_counter() - began)
        for one in opened:
            one.transport.abort()
        return share

    return asyncio.run(main())


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("pi0", "modelled"), default="pi0")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--closed", type=int, nargs="*", default=CLOSED)
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    if flags.model == "pi0":
        import gpu
        from pi0_sized import make

        policy, frame = gpu.policy(make(), graphs=True, max_batch=64), gpu.request()
    else:
        policy, frame = clients.Modelled(), clients.request()
    bare = forward_ms(policy)
    print(f"the bare forward of one row: {bare:.1f} ms")
    found: dict[str, Any] = {"forward_ms": bare, "points": {}}

    def point(name: str, groups: list[int], rate: Callable[[str], float]) -> None:
        for which, run in SERVERS.items():
            each = rate(which)
            seen = asyncio.run(
                run(policy, lambda port, r=each: measure(port, frame, groups, r, flags.seconds))
            )
            cells = found["points"].setdefault(name, {})[which] = row(seen, flags.seconds)
            said = "  ".join(f"{key} {value:9.1f}" for key, value in cells.items())
            print(f"{name:<28} {which:<7} {said}", flush=True)

    for count in flags.closed:
        point(f"closed, {count} clients", spread(count), lambda _: 0.0)
    top = found["points"].get(f"closed, {OPEN_CLIENTS} clients")
    for share in OPEN if top else ():
        # Both are asked at the same rate: a share of what hocket's server gets.
        rate = share * top["hocket"]["requests_per_s"] / OPEN_CLIENTS
        point(f"open, {share:.0%}", spread(OPEN_CLIENTS), lambda _, each=rate: each)
    for name, use in (("flood_share", flood), ("idle_cpu", idle)):
        found[name] = asyncio.run(
            hocket_server(policy, lambda port, use=use: use(port, frame, flags.seconds))
        )
        print(f"{name}: {found[name]:.3f}")
    one = found["points"].get("closed, 1 clients")
    if one:
        print(f"one client above the forward: {one['hocket']['p50_ms'] - bare:.2f} ms (at most 2)")
    if flags.json:
        flags.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
