"""What a flow policy's prefix and its flow steps cost apart, and what admission between flow steps,
one prefix for several noises and prompts that are cut would give.

    python benchmarks/serving/parts.py [--json FILE] [--times FILE]

A module of pi0's size on a GPU, CUDA graphs. `--times` takes the times of an earlier `--json`, and
simulates anywhere: requests come at random at a share of what batches as they are now give, a batch
of at most 64. Now: all that waits is one batch, and who comes meanwhile waits for its end. Joined:
before each flow step all that waits is encoded in one prefix and joins the batch; who has made its
last step leaves. Copying what the decoder remembers into the batch is taken as free, which favours
joining. `every` says after how many steps one may join.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (1, 2, 4, 8, 16, 32, 64)
STEPS, MAX_BATCH = 10, 64
TEXTS = (16, 48, 64, 128, 200)
LOADS = (0.3, 0.5, 0.7, 0.9)
REQUESTS = 20_000


# -- On a GPU --------------------------------------------------------------------------------------


def measured() -> dict[str, Any]:
    """Milliseconds by batch: of the prefix, of one flow step, and of a prefix by its text."""
    import torch

    from pi0_sized import ACTION, CHUNK, IMAGES, STATE, make

    module = make()

    def ms(work: Callable[[], Any], repeats: int = 8) -> dict[str, float]:
        found = {}
        with torch.inference_mode():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                work()
                work()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
            for name, run in (("eager", work), ("graph", graph.replay)):
                times = []
                for _ in range(repeats):
                    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                    torch.cuda.synchronize()
                    events[0].record()
                    run()
                    events[1].record()
                    torch.cuda.synchronize()
                    times.append(events[0].elapsed_time(events[1]))
                found[name] = sorted(times)[repeats // 2]
        return found

    out: dict[str, Any] = {"prefix": {}, "step": {}, "text": {}}
    for size in SIZES:
        seen = {key: torch.zeros(size, 224, 224, 3, dtype=torch.uint8).cuda() for key in IMAGES}
        seen["observation/state"] = torch.zeros(size, STATE).cuda()
        actions = torch.randn(size, CHUNK, ACTION, dtype=torch.bfloat16).cuda()
        with torch.inference_mode():
            memory = module.prefix(seen)
        out["prefix"][size] = ms(lambda seen=seen: module.prefix(seen))
        out["step"][size] = ms(
            lambda seen=seen, memory=memory, actions=actions: module.step(seen, memory, actions, 0)
        )
        if size in (1, 8, 32):
            out["text"][size] = {
                text: ms(lambda seen=seen, text=text: module.prefix(seen, text)) for text in TEXTS
            }
        print(size, out["prefix"][size], out["step"][size], flush=True)
    return out


# -- Anywhere --------------------------------------------------------------------------------------


def between(times: dict[str, Any], kind: str = "graph") -> Callable[[int], float]:
    """Seconds by batch, on a line between the sizes that were measured: nothing is padded."""
    points = sorted((int(size), row[kind] / 1e3) for size, row in times.items())
    sizes, seconds = zip(*points, strict=True)
    return lambda size: float(np.interp(size, sizes, seconds))


Forward = Callable[[int], float]


def arrivals(rate: float, seed: int) -> deque[float]:
    rng, now, found = random.Random(seed), 0.0, deque[float]()
    for _ in range(REQUESTS):
        now += rng.expovariate(rate)
        found.append(now)
    return found


def batched(prefix: Forward, step: Forward, coming: deque[float]) -> list[float]:
    """Latencies of whole batches, one after the other."""
    now, took = 0.0, []
    while coming:
        now = max(now, coming[0])
        batch = []
        while coming and coming[0] <= now and len(batch) < MAX_BATCH:
            batch.append(coming.popleft())
        now += prefix(len(batch)) + STEPS * step(len(batch))
        took += [now - began for began in batch]
    return took


def joined(prefix: Forward, step: Forward, coming: deque[float], every: int) -> list[float]:
    """Latencies where requests join between flow steps."""
    now, took, made = 0.0, [], 0
    active: list[list[float]] = []  # when it came, and its steps so far
    while coming or active:
        if not active:
            now, made = max(now, coming[0]), 0
        if made % every == 0:
            new = []
            while coming and coming[0] <= now and len(active) + len(new) < MAX_BATCH:
                new.append([coming.popleft(), 0])
            if new:
                now += prefix(len(new))
                active += new
        now += step(len(active))
        made += 1
        for one in active:
            one[1] += 1
        took += [now - one[0] for one in active if one[1] == STEPS]
        active = [one for one in active if one[1] < STEPS]
    return took


def simulate(times: dict[str, Any]) -> None:
    prefix, step = between(times["prefix"]), between(times["step"])
    most = max(size / (prefix(size) + STEPS * step(size)) for size in SIZES)
    print(f"batches as they are give at most {most:.1f} requests/s")
    ways: dict[str, Callable[[deque[float]], list[float]]] = {
        "now": lambda coming: batched(prefix, step, coming)
    }
    for every in (1, 2, 5):
        ways[f"every {every}"] = lambda coming, every=every: joined(prefix, step, coming, every)
    for load in LOADS:
        for name, way in ways.items():
            took = sorted(way(arrivals(load * most, seed=int(100 * load))))
            at = [1e3 * took[int(share * len(took))] for share in (0.5, 0.95, 0.99)]
            print(f"{load:4.0%}  {name:<8}  p50 {at[0]:8.1f}  p95 {at[1]:8.1f}  p99 {at[2]:8.1f}")
    for noises in (4, 8):
        apart = prefix(noises) + STEPS * step(noises)
        once = prefix(1) + STEPS * step(noises)
        print(
            f"{noises} noises for one observation: {1e3 * apart:.1f} ms, with one prefix "
            f"{1e3 * once:.1f} ms"
        )
    for size, row in times["text"].items():
        rest = STEPS * step(int(size)) * 1e3
        for kind in ("eager", "graph"):
            cells = [f"{text}: {row[text][kind] + rest:.1f}" for text in row]
            print(f"batch {size}, {kind}, ms by tokens of text: {', '.join(cells)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--times", type=Path)
    flags = parser.parse_args()
    text = flags.times.read_text() if flags.times else json.dumps(measured())
    if flags.json:
        flags.json.write_text(text)
    simulate(json.loads(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
