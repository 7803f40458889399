"""Sites in a real Ray cluster of three nodes on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.core.events import EpisodesSealed, Event
from hocket.machines.config import MachinesConfig, SiteConfig
from hocket.machines.machines import Machines
from hocket.records.ledger.view import LedgerView
from hocket.runs.run import Run
from support.sites import assert_same, run_here, toys

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        small = {"object_store_memory": 80 << 20, "include_dashboard": False}
        found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
        found.sites = [found.add_node(num_cpus=1, object_store_memory=80 << 20) for _ in range(3)]
        ray.init(address=found.address, log_to_driver=False)
        yield found
        ray.shutdown()
        found.shutdown()


class KillANode:
    """A reader that takes a node away in the middle of the run."""

    def __init__(self, cluster: Any, after: int) -> None:
        self._cluster = cluster
        self._left = after

    def on(self, event: Event) -> None:
        if isinstance(event, EpisodesSealed):
            self._left -= len(event.episodes)
            if self._left <= 0 and self._cluster.sites:
                self._cluster.remove_node(self._cluster.sites.pop(), allow_graceful=False)
                self._left = 10**9

    def close(self) -> None: ...


def test_a_run_on_three_nodes_survives_one_of_them(tmp_path: Path, cluster: Any) -> None:
    config = toys(episodes=90, env_config={"step_s": 0.01}, retries=0)
    where = MachinesConfig(where="ray", sites=3, site=SiteConfig(lease_s=4.0))
    with (
        warnings.catch_warnings(),
        Machines(where) as machines,
        Run.new(config, tmp_path / "there") as run,
    ):
        warnings.simplefilter("ignore")
        report = run.finish(elsewhere=machines, readers=[KillANode(cluster, 15)])
    assert report.complete
    assert report.overall.errors == 0
    run_here(config, tmp_path / "here")
    assert_same(tmp_path / "here", tmp_path / "there")
    with LedgerView.open(tmp_path / "there") as ledger:
        lost = ledger.failures()
    assert len(lost) <= 4, [failure.error for failure in lost]
