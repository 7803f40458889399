"""How far a chunk walks in the parent: Python calls, hops and modules for one batch of two chunks.

Two lanes of a toy env in real local workers ask a scripted policy, in a run with a folder. What the
engine's thread calls of hocket from one `infer` of two rows to the next is counted by
`sys.setprofile`; the policy is so brief that the same thread asks it. A hop is a call from another
module. Prints the medians of a steady run, and with --list what each module is called for.

    python benchmarks/engine/walk.py [--list]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from types import FrameType
from typing import NamedTuple

import hocket
from hocket.core.events import BatchInferred, EpisodesEnded, Event
from hocket.testing.scripted import ScriptedConfig, ScriptedPolicy

ROOT = str(Path(hocket.__file__).parent)
MOST_HOPS, MOST_MODULES = 80, 20
CHUNK, CHUNKS, UNSTEADY = 4, 120, 40
"""Actions in a chunk, chunks in an episode, and batches before a run is steady: by then every size
was timed and every memory has its length."""
AWAY_S = 5e-3
"""Seconds that the engine is kept from looking, so that both lanes are back when it does."""


class Call(NamedTuple):
    caller: str
    module: str
    function: str


class Walk(NamedTuple):
    """What was called from one batch of two to the next."""

    calls: list[Call]

    @property
    def hops(self) -> int:
        return sum(call.caller != call.module for call in self.calls)

    @property
    def modules(self) -> Counter[str]:
        return Counter(call.module for call in self.calls)


class Counting:
    """A reader that has the engine's own thread counted, which it is called on."""

    def __init__(self) -> None:
        self.walks: list[Walk] = []
        self._calls: list[Call] = []
        self._rows = 0
        """Rows of the batch since which calls are counted; 0 before the first."""
        self._batches = 0

    def on(self, event: Event) -> None:
        if isinstance(event, BatchInferred):
            self._batches += 1
            time.sleep(AWAY_S)
            if self._batches == UNSTEADY:
                sys.setprofile(self._count)
        elif isinstance(event, EpisodesEnded):
            sys.setprofile(None)

    def close(self) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(ROOT):
            return
        if frame.f_code is ScriptedPolicy.infer.__code__:
            rows = len(frame.f_locals["batch"].rows)
            if rows == self._rows == 2:
                self.walks.append(Walk(self._calls))
            self._rows, self._calls = rows, []
        caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
        self._calls.append(
            Call(_name(caller), _name(frame.f_code.co_filename), frame.f_code.co_name)
        )


def _name(path: str) -> str:
    return path.removeprefix(f"{ROOT}/")


def walks() -> list[Walk]:
    """What each batch of two that followed another needed, in a run of its own."""
    counting = Counting()
    length = CHUNK * CHUNKS
    with tempfile.TemporaryDirectory() as folder:
        hocket.evaluate(
            env="toy:count",
            env_config={"length_min": length, "length_max": length},
            policy=ScriptedPolicy("", ScriptedConfig(chunk_length=CHUNK)),
            lanes=2,
            episodes=2,
            out=Path(folder) / "run",
            readers=[counting],
            progress=False,
        )
    return counting.walks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name the modules with their calls")
    arguments = parser.parse_args()
    found = walks()
    if not found:
        sys.exit("No batch of two followed another: the machine is too busy.")
    calls = median(len(walk.calls) for walk in found)
    hops = median(walk.hops for walk in found)
    modules = median(len(walk.modules) for walk in found)
    print(
        f"{calls:g} calls, {hops:g} hops, {modules:g} modules: the median of {len(found)} batches"
    )
    if arguments.list:
        usual = min(found, key=lambda walk: abs(walk.hops - hops))
        for module, count in usual.modules.most_common():
            named = Counter(call.function for call in usual.calls if call.module == module)
            print(f"{count:>5}  {module}: {', '.join(f'{name} {n}' for name, n in named.items())}")
    is_met = hops <= MOST_HOPS and modules <= MOST_MODULES
    print(f"limit {MOST_HOPS} hops and {MOST_MODULES} modules: {'met' if is_met else 'NOT MET'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
