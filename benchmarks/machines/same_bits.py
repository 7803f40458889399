"""The same trials in one process, on three sites of this machine, and on a Ray cluster of three
nodes: are they the same to the bit?

    python benchmarks/machines/same_bits.py --episodes 20        # 200 trials of MT10, each way
    python benchmarks/machines/same_bits.py --ways local         # without Ray

Every step of every trial is compared (actions, rewards, ends, what was seen of states), and the
outcome, return and length of every episode.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hocket.machines.machines import Machines
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import load_steps
from hocket.runs.config import EvalConfig
from hocket.runs.elsewhere import Elsewhere
from hocket.runs.run import Run
from hocket.runs.sites import MachinesConfig, SiteConfig

SITES = 3


@contextlib.contextmanager
def cluster() -> Iterator[Any]:
    """A Ray cluster of three nodes on this machine, each with a core."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        from ray.cluster_utils import Cluster

        small = {"object_store_memory": 80 << 20}
        head = {"num_cpus": 0, "include_dashboard": False, **small}
        found = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(SITES):
            found.add_node(num_cpus=1, **small)
        ray.init(address=found.address, log_to_driver=False)
        try:
            yield found
        finally:
            ray.shutdown()
            found.shutdown()


@contextlib.contextmanager
def machines(way: str) -> Iterator[Elsewhere | None]:
    if way == "here":
        yield None
    elif way == "local":
        config = MachinesConfig(where=f"local:{SITES}", site=SiteConfig())
        with Machines(config) as found:
            yield found
    else:
        with cluster():
            config = MachinesConfig(where="ray", sites=SITES, site=SiteConfig())
            with Machines(config) as found:
                yield found


def results(folder: Path) -> tuple[list[tuple[Any, ...]], Any]:
    """What became of each trial, and all of its steps, without the numbers of attempts."""
    with LedgerView.open(folder) as ledger:
        episodes = [
            (e.trial, e.outcome, e.steps, e.total_reward, *e[5:8]) for e in ledger.episodes()
        ]
    steps = load_steps(folder).drop_columns(["attempt"])
    return episodes, steps.sort_by([("trial", "ascending"), ("step", "ascending")])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--env", default="metaworld:mt10")
    parser.add_argument("--policy", default="reference")
    parser.add_argument("--episodes", type=int, default=20, help="of each task")
    parser.add_argument("--lanes", type=int, default=2, help="of each site")
    parser.add_argument("--ways", nargs="+", default=["local", "ray"])
    flags = parser.parse_args()
    config = EvalConfig(
        env=(flags.env,),
        policy=flags.policy,
        episodes=flags.episodes,
        lanes=flags.lanes,
        video="none",
        exact=True,
    )
    first, is_same = None, True
    with tempfile.TemporaryDirectory() as folder:
        for way in ("here", *flags.ways):
            began = time.perf_counter()
            with machines(way) as elsewhere, Run.new(config, Path(folder) / way) as run:
                report = run.finish(elsewhere=elsewhere)
            episodes, steps = results(Path(folder) / way)
            told = f"{way:>6}: {len(episodes)} episodes, {steps.num_rows} steps, "
            told += f"success {report.overall.rate}, {time.perf_counter() - began:.0f} s"
            if first is None:
                first = (episodes, steps)
            else:
                same = episodes == first[0] and steps.equals(first[1])
                told += ", the same to the bit" if same else ", NOT the same"
                is_same = is_same and same
            print(told, flush=True)
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
