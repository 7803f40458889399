"""Encoding and decoding of a request with two 224 px images: microseconds each way.

    python benchmarks/serving/codec.py [--json]

The limit that hocket sets itself is 100 us each way, raw.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from hocket.core.codec import pack, unpack

LIMIT_US = 100.0


def request() -> dict[str, object]:
    """What a DROID client sends."""
    rng = np.random.default_rng(0)
    return {
        "observation/exterior_image_1_left": rng.integers(0, 256, (224, 224, 3), np.uint8),
        "observation/wrist_image_left": rng.integers(0, 256, (224, 224, 3), np.uint8),
        "observation/joint_position": rng.normal(size=7),
        "observation/gripper_position": rng.normal(size=1),
        "prompt": "put the marker in the cup",
    }


def median_us(call: Callable[[], object], repeats: int = 2000) -> float:
    """Median time of one call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    wants_json = parser.parse_args().json
    observation = request()
    frame = pack(observation)
    result = {
        "bytes": len(frame),
        "encode_us": round(median_us(lambda: pack(observation)), 1),
        "decode_us": round(median_us(lambda: unpack(frame)), 1),
        "limit_us": LIMIT_US,
    }
    if wants_json:
        print(json.dumps(result))
    else:
        print(f"{result['bytes']} bytes, medians of 2000 (limit {LIMIT_US:.0f} us each way)")
        print(f"encode {result['encode_us']:7.1f} us")
        print(f"decode {result['decode_us']:7.1f} us")
    if max(result["encode_us"], result["decode_us"]) > LIMIT_US:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
