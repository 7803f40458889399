"""A whole evaluation through the wire, against the same policy in this process.

    python benchmarks/serving/wire_run.py [--lanes 16] [--episodes 64] [--repeats 3] [--json]

The policy takes 75 + 8.5 B ms, env steps 10 ms (sleeping, so that few cores host many lanes), with
two camera images in each observation. hocket's server runs in a process of its own on this machine.
Repeats are interleaved; medians are compared, and returns trial by trial. Limit: at least 0.95 of
the in-process throughput.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hocket.runs.evaluation import evaluate

MIN_SHARE = 0.95
POLICY = {"latency_s": 0.075, "latency_per_row_s": 0.0085, "chunk_length": 16, "max_batch": 32}
CAMERAS = ("observation/image", "observation/wrist_image")


@contextmanager
def server() -> Iterator[str]:
    """The address of a `hocket serve` of the modelled policy."""
    settings = [f"--policy.{key.replace('_', '-')}={value}" for key, value in POLICY.items()]
    command = [sys.executable, "-m", "hocket", "serve", "--policy", "scripted", "--port", "0"]
    process = subprocess.Popen(
        [*command, *settings, "--policy.cameras", *CAMERAS],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            found = re.search(r"ws://(\S+)", line)
            if found:
                yield found[1]
                return
        raise SystemExit("the server did not come up")
    finally:
        process.terminate()
        process.wait()


def run(policy: str, config: dict[str, Any], flags: argparse.Namespace) -> tuple[float, list[Any]]:
    """Env steps per second, and what came of each trial."""
    report = evaluate(
        env="toy:image",
        policy=policy,
        env_config={"step_s": 0.01, "image_size": 224, "length_min": 60, "length_max": 120},
        policy_config=config,
        episodes=flags.episodes,
        lanes=flags.lanes,
    ).to_json()
    episodes = sorted((e["trial"], e["steps"], e["return"]) for e in report["episodes"])
    return report["throughput"]["env_steps_per_s"], episodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    here: list[float] = []
    there: list[float] = []
    with server() as address:
        for _ in range(flags.repeats):
            speed, expected = run("scripted", {**POLICY, "cameras": CAMERAS}, flags)
            here.append(speed)
            speed, found = run(f"openpi://{address}", {}, flags)
            there.append(speed)
            if found != expected:
                raise SystemExit("The runs differ: a row went to the wrong lane.")
    share = statistics.median(there) / statistics.median(here)
    result = {
        "in_process_steps_per_s": [round(speed, 1) for speed in here],
        "over_the_wire_steps_per_s": [round(speed, 1) for speed in there],
        "share": round(share, 3),
        "limit": MIN_SHARE,
    }
    if flags.json:
        print(json.dumps(result))
    else:
        print(f"{flags.lanes} lanes, {flags.episodes} episodes, env steps/s (equal returns)")
        print(f"  in process     {result['in_process_steps_per_s']}")
        print(f"  over the wire  {result['over_the_wire_steps_per_s']}")
        print(f"  share of the medians {share:.3f} (at least {MIN_SHARE})")
    raise SystemExit(0 if share >= MIN_SHARE else 1)


if __name__ == "__main__":
    main()
