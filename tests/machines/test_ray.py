"""Sites in a real Ray cluster of three nodes on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.core.events import EpisodesSealed, Event, SitesChanged
from hocket.machines import ray as ray_sites
from hocket.machines.machines import Machines
from hocket.records.ledger.view import LedgerView
from hocket.runs.run import Run
from hocket.runs.sites import MachinesConfig, SiteConfig
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


@pytest.fixture
def quiet() -> Iterator[None]:
    """Without the warnings of Ray's own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class GrowTheCluster:
    """A reader that adds a node in the middle of the run, which then waits for a site there."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._is_grown = False
        self.most = 0

    def on(self, event: Event) -> None:
        if isinstance(event, EpisodesSealed) and not self._is_grown:
            self._is_grown = True
            self._cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
        if isinstance(event, SitesChanged):
            self.most = max(self.most, sum(site.lanes > 0 for site in event.sites))

    def close(self) -> None: ...


@pytest.mark.usefixtures("quiet")
def test_sites_are_placed_as_the_cluster_grows(tmp_path: Path, cluster: Any) -> None:
    for node in cluster.sites[1:]:
        cluster.remove_node(node, allow_graceful=True)
    config = toys(episodes=400, env_config={"step_s": 0.02})
    reader = GrowTheCluster(cluster)
    where = MachinesConfig(where="ray", site=SiteConfig())
    with Machines(where) as machines, Run.new(config, tmp_path / "there") as run:
        report = run.finish(elsewhere=machines, readers=[reader])
    assert report.complete
    assert reader.most == 2


class Watch:
    """A reader that sees how many sites take part at most, and what they have of the cluster."""

    def __init__(self) -> None:
        self.taken: dict[int, dict[str, float]] = {}

    def on(self, event: Event) -> None:
        import ray

        if isinstance(event, SitesChanged) and (sites := sum(s.lanes > 0 for s in event.sites)):
            total, free = ray.cluster_resources(), ray.available_resources()
            names = ("CPU", "GPU", "memory")
            self.taken[sites] = {name: total[name] - free.get(name, 0.0) for name in names}

    def close(self) -> None: ...


@pytest.mark.usefixtures("quiet")
def test_sites_get_what_the_flags_say_on_every_node_that_has_it(
    tmp_path: Path, cluster: Any
) -> None:
    for node in cluster.sites:
        cluster.remove_node(node, allow_graceful=True)
    for cpus, gpus in ((3, 1), (3, 2), (1, 1)):  # Room for one site, for one, and for none.
        cluster.add_node(num_cpus=cpus, num_gpus=gpus, memory=1 << 30, object_store_memory=80 << 20)
    reader = Watch()
    site = SiteConfig(cpus=2, gpus=1, memory=256 << 20)
    config = toys(episodes=60, env_config={"step_s": 0.02})
    where = MachinesConfig(where="ray", site=site)
    with Machines(where) as machines, Run.new(config, tmp_path / "run") as run:
        report = run.finish(elsewhere=machines, readers=[reader])
    assert report.complete
    assert reader.taken[max(reader.taken)] == {"CPU": 4, "GPU": 2, "memory": 512 << 20}
    assert max(reader.taken) == 2


@pytest.mark.usefixtures("quiet", "cluster")
def test_it_is_said_once_that_no_node_is_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_sites, "_LOOK_S", -1.0)
    config = MachinesConfig(where="ray", site=SiteConfig(gpus=8))
    launcher = ray_sites.RayLauncher(config)
    launcher.start(1, "no key")
    ((who, account),) = launcher.poll()
    assert who == "ray"
    assert "no node that is large enough for a site (CPU 1, GPU 8)" in account
    assert not launcher.poll()
    launcher.close()


@pytest.mark.usefixtures("quiet")
def test_the_working_directory_and_variables_come_to_the_sites(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    code = tmp_path / "code"
    code.mkdir()
    (code / "shipped_env.py").write_text(
        "import os\n"
        "import gymnasium\n"
        "import numpy as np\n\n"
        "class Env(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)\n"
        "    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return np.zeros(2, np.float32), {}\n"
        "    def step(self, action):\n"
        "        won = os.environ.get('SHIPPED') == 'yes'\n"
        "        return np.zeros(2, np.float32), 0.0, True, False, {'success': won}\n\n"
        "def make():\n"
        "    return Env()\n"
    )
    file = tmp_path / "runtime.yaml"
    file.write_text(f"working_dir: {code}\nenv_vars: {{SHIPPED: 'yes'}}\n")
    monkeypatch.syspath_prepend(code)  # The plan is made here.
    ray.shutdown()
    where = MachinesConfig(
        where="ray", sites=2, site=SiteConfig(runtime_env=str(file), gpus=0.0, cpus=1.0)
    )
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    config = toys(env=("shipped_env:make",), episodes=4)
    with Machines(where) as machines, Run.new(config, tmp_path / "run") as run:
        report = run.finish(elsewhere=machines)
    assert report.complete
    assert report.overall.rate == 1.0


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


@pytest.mark.usefixtures("quiet")
def test_a_run_on_three_nodes_survives_one_of_them(tmp_path: Path, cluster: Any) -> None:
    config = toys(episodes=90, env_config={"step_s": 0.01}, retries=0)
    where = MachinesConfig(where="ray", sites=3, site=SiteConfig(lease_s=4.0))
    with Machines(where) as machines, Run.new(config, tmp_path / "there") as run:
        report = run.finish(elsewhere=machines, readers=[KillANode(cluster, 15)])
    assert report.complete
    assert report.overall.errors == 0
    run_here(config, tmp_path / "here")
    assert_same(tmp_path / "here", tmp_path / "there")
    with LedgerView.open(tmp_path / "there") as ledger:
        lost = ledger.failures()
    assert len(lost) <= 4, [failure.error for failure in lost]
