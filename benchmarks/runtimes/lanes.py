"""What lanes in containers and behind a WebSocket cost, beside lanes in processes of this machine.

Each setting runs the same trials in turn under `local` and under the other runtime, several times;
the median of the ratios of their rates is printed with quartiles and range. A ratio is taken
between two runs that follow each other, so that whatever else the machine does weighs on both: many
short ones say more than a few long ones. Podman's containers weigh together as one process where
others want the cores too; with --same-shares the local workers are put among them, so that what is
compared is what lanes cost and not what the kernel gives them (root, cgroups of version 1).

    python benchmarks/runtimes/lanes.py --runtime podman:IMAGE [--mounts A:B:ro,...] [--python PATH]
    python benchmarks/runtimes/lanes.py --runtime loopback [--repeats 60] [--seconds 0.4] [--starts]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core import plugins
from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Ref, Trial
from hocket.workers.fleet import Fleet, FleetConfig
from hocket.workers.notices import LaneFailed, LanesBegun, LanesExecuted, LanesUp

LANES = 2
CHUNK = 16
CONTAINERS = Path("/sys/fs/cgroup/cpu/libpod_parent")
"""The shares of all containers of Podman's."""
SETTINGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "no-op": ("toy", "count", {"length_min": 10**9, "length_max": 10**9}),
    "two pictures": (
        "toy",
        "image",
        {"length_min": 10**9, "length_max": 10**9, "image_size": 224, "render_s": 0.01},
    ),
    "metaworld, one camera": ("metaworld:reach-v3", "reach-v3", {"size": 224}),
    "metaworld, two cameras": (
        "metaworld:reach-v3",
        "reach-v3",
        {"size": 224, "cameras": ("corner2", "gripperPOV")},
    ),
}
"""By name: the env, its task and its settings."""


class Lanes:
    """A fleet whose lanes execute chunk after chunk, each as soon as it has answered."""

    def __init__(self, runtime: Runtime, setting: str) -> None:
        env, self._task, config = SETTINGS[setting]
        spec = WorkerSpec(suites={"s": Ref(name=env, config=config)})
        self._fleet = Fleet(runtime, spec, FleetConfig(lanes=LANES))
        self._chunk = [0] * LANES
        self._actions = np.zeros((CHUNK, 4))
        self._fleet.start()
        up = 0
        while up < LANES:
            up += sum(len(notice.lanes) for notice in self._poll() if isinstance(notice, LanesUp))
        for lane in range(LANES):
            self._begin(lane)

    def rate(self, seconds: float) -> float:
        """Steps per second of all lanes."""
        began, steps = time.perf_counter(), 0
        while (now := time.perf_counter()) < began + seconds:
            for notice in self._poll():
                if isinstance(notice, LanesBegun):
                    for lane in notice.lanes:
                        self._execute(lane)
                elif isinstance(notice, LanesExecuted):
                    steps += sum(notice.steps)
                    for lane, end in zip(notice.lanes, notice.ends, strict=True):
                        if end:
                            self._begin(lane)
                        else:
                            self._execute(lane)
        return steps / (now - began)

    def weigh_like_containers(self) -> None:
        for number, worker in enumerate(self._fleet._supervisor.workers):
            group = CONTAINERS / f"local-{number}"
            group.mkdir(exist_ok=True)
            (group / "cgroup.procs").write_text(str(worker.link._control.pid))

    def close(self) -> None:
        self._fleet.close()

    def _poll(self) -> Any:
        for notice in self._fleet.poll(60.0):
            if isinstance(notice, LaneFailed):
                raise SystemExit(notice.account)
            yield notice

    def _begin(self, lane: int) -> None:
        trial = Trial(suite="s", task=self._task, seed=lane)
        self._chunk[lane] = 0
        self._fleet.begin([lane], [0], [trial], [None], final_observation=False, record=[{}])

    def _execute(self, lane: int) -> None:
        for name in self._fleet.arrays(lane).values():
            name.sum()  # As a policy would, somebody reads it.
        self._fleet.execute([lane], [0], [self._chunk[lane]], [self._actions])
        self._chunk[lane] += 1


def compare(
    make: Callable[[str], Runtime],
    setting: str,
    repeats: int,
    seconds: float,
    *,
    has_same_shares: bool,
) -> list[float]:
    """Ratios of the other runtime's rate to the local one's."""
    lanes = [Lanes(make(name), setting) for name in ("local", "other")]
    try:
        if has_same_shares:
            lanes[0].weigh_like_containers()
        for each in lanes:
            each.rate(1.0)
        ratios = []
        for repeat in range(repeats):
            order = lanes if repeat % 2 else lanes[::-1]
            rates = {each: each.rate(seconds) for each in order}
            ratios.append(rates[lanes[1]] / rates[lanes[0]])
        return ratios
    finally:
        for each in lanes:
            each.close()
        for group in CONTAINERS.glob("local-*"):
            group.rmdir()


def starts(make: Callable[[str], Runtime]) -> list[float]:
    """Seconds until each of eight lanes was up that were asked for at once."""
    env, _, config = SETTINGS["no-op"]
    spec = WorkerSpec(suites={"s": Ref(name=env, config=config)})
    with Fleet(make("other"), spec, FleetConfig(lanes=8)) as fleet:
        began, took = time.perf_counter(), []
        fleet.start()
        while len(took) < 8:
            for notice in fleet.poll(60.0):
                if isinstance(notice, LaneFailed):
                    raise SystemExit(notice.account)
                if isinstance(notice, LanesUp):
                    took.append(time.perf_counter() - began)
        return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--python")
    parser.add_argument("--mounts")
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--settings", default="no-op;two pictures")
    parser.add_argument("--starts", action="store_true")
    parser.add_argument("--same-shares", action="store_true")
    flags = parser.parse_args()
    config: dict[str, Any] = {}
    if flags.python:
        config["python"] = flags.python
    if flags.mounts:
        config["mounts"] = tuple(flags.mounts.split(","))

    def make(name: str) -> Runtime:
        if name == "local":
            return plugins.build("runtimes", "local")
        return plugins.build("runtimes", flags.runtime, config)

    for setting in SETTINGS if flags.settings == "all" else flags.settings.split(";"):
        found = compare(
            make, setting, flags.repeats, flags.seconds, has_same_shares=flags.same_shares
        )
        low, middle, high = statistics.quantiles(found, n=4)
        print(
            f"{setting}: {middle:.3f} of local (half of the pairs within {low:.3f} to {high:.3f}, "
            f"all within {min(found):.3f} to {max(found):.3f}, n = {len(found)})",
            flush=True,
        )
    if flags.starts:
        took = starts(make)
        print(f"first lane up after {took[0]:.2f} s, the eighth after {took[-1]:.2f} s")


if __name__ == "__main__":
    main()
