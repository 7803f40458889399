"""Two sites on this machine beside one engine with as many lanes: what does it cost to be spread?

    python benchmarks/machines/two_sites.py --repeats 3

Both are run in turn, on the same trials. A rate is that of control steps between the first and the
last quarter of the episodes that ended, so that starting and the last lane are left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from hocket.core.events import EpisodesSealed, Event
from hocket.machines.machines import Machines
from hocket.runs.config import EvalConfig
from hocket.runs.run import Run
from hocket.runs.sites import MachinesConfig, SiteConfig


class Pace:
    """A reader that notes when episodes ended, and how many steps they had."""

    def __init__(self) -> None:
        self.ended: list[tuple[float, int]] = []

    def on(self, event: Event) -> None:
        if isinstance(event, EpisodesSealed):
            now = time.perf_counter()
            self.ended += [(now, episode.steps) for episode in event.episodes]

    def close(self) -> None: ...

    def rate(self) -> float:
        """Control steps per second in the middle half."""
        quarter = len(self.ended) // 4
        middle = self.ended[quarter : -quarter or None]
        seconds = middle[-1][0] - middle[0][0]
        return sum(steps for _, steps in middle[1:]) / seconds


def measure(flags: argparse.Namespace, folder: Path, *, is_spread: bool) -> float:
    config = EvalConfig(
        env=(flags.env,),
        policy=flags.policy,
        episodes=flags.episodes,
        lanes=1 if is_spread else 2,
        max_steps=flags.steps,
        video="none",
    )
    pace = Pace()
    with Run.new(config, folder) as run:
        if is_spread:
            where = MachinesConfig(where="local:2", site=SiteConfig())
            with Machines(where) as machines:
                run.finish(elsewhere=machines, readers=[pace])
        else:
            run.finish(readers=[pace])
    return pace.rate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--env", default="metaworld:reach-v3")
    parser.add_argument("--policy", default="random")
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--steps", type=int, default=200, help="of each episode")
    parser.add_argument("--repeats", type=int, default=3)
    flags = parser.parse_args()
    ratios = []
    for repeat in range(flags.repeats):
        with tempfile.TemporaryDirectory() as folder:
            order = (False, True) if repeat % 2 == 0 else (True, False)
            rates = {s: measure(flags, Path(folder) / str(s), is_spread=s) for s in order}
        ratios.append(rates[True] / rates[False])
        print(
            f"one engine {rates[False]:8.0f} steps/s   two sites {rates[True]:8.0f} steps/s   "
            f"{ratios[-1]:.3f}",
            flush=True,
        )
    print(f"median of {len(ratios)}: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
