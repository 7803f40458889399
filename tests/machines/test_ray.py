"""Sites in a real Ray cluster of three nodes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.core.events import EpisodesSealed, Event, SitesChanged
from hocket.machines import ray as ray_sites
from hocket.machines.machines import Machines
from hocket.records.ledger.view import LedgerView
from hocket.runs.run import Run
from hocket.runs.sites import MachinesConfig, SiteConfig
from support.processes import DEADLINE_S, children, wait_until
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


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("gpus", "sites"), [(1, 2), (2, 1)])
def test_sites_get_what_the_flags_say_on_every_node_that_has_it(
    tmp_path: Path, cluster: Any, gpus: int, sites: int
) -> None:
    for node in cluster.sites:
        cluster.remove_node(node, allow_graceful=True)
    # Room for a site on two of them, or, with two GPUs each, on one.
    for cpus, there in ((3, 1), (3, 2), (1, 1)):
        memory = {"memory": 1 << 30, "object_store_memory": 80 << 20}
        cluster.add_node(num_cpus=cpus, num_gpus=there, **memory)
    reader = pytest.importorskip("support.growing_ray").Watch()
    site = SiteConfig(cpus=2, gpus=gpus, memory=256 << 20)
    config = toys(episodes=60, env_config={"step_s": 0.02})
    where = MachinesConfig(where="ray", site=site)
    with Machines(where) as machines, Run.new(config, tmp_path / "run") as run:
        report = run.finish(elsewhere=machines, readers=[reader])
    assert report.complete
    assert max(reader.taken) == sites
    wanted = {"CPU": 2 * sites, "GPU": gpus * sites, "memory": sites * (256 << 20)}
    assert reader.taken[sites] == wanted


@pytest.mark.usefixtures("quiet")
def test_it_is_said_once_that_no_node_is_large_enough(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_sites, "_LOOK_S", -1.0)
    for _ in range(2):
        cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=80 << 20)
    config = MachinesConfig(where="ray", site=SiteConfig(gpus=2))
    launcher = ray_sites.RayLauncher(config)
    launcher.start(1, "no key")
    ((who, account),) = launcher.poll()
    assert who == "ray"
    assert "no node that is large enough for a site (CPU 1, GPU 2)" in account
    assert not launcher.poll()
    launcher.close()


def groups() -> list[Any]:
    """The states of what Ray keeps places for."""
    from ray.util import placement_group_table

    return [group["state"] for group in placement_group_table().values()]


@pytest.mark.usefixtures("quiet")
def test_it_is_said_once_which_sites_of_several_gpus_have_no_place(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_sites, "_LOOK_S", -1.0)
    monkeypatch.setattr(ray_sites, "_PATIENCE_S", -1.0)
    cluster.add_node(**TWO)
    config = MachinesConfig(where="ray", sites=2, site=SiteConfig(gpus=2))
    launcher = ray_sites.RayLauncher(config)
    launcher.start(1, "no key")
    wait_until(lambda: sorted(groups()) == ["CREATED", "PENDING"])
    ((who, account),) = launcher.poll()
    assert who == "ray"
    assert account.startswith("has no place yet for ray-")
    assert "each needs CPU 1, GPU 2 on one node, and what is large enough is taken" in account
    assert not launcher.poll()
    cluster.add_node(**TWO)
    wait_until(lambda: groups() == ["CREATED", "CREATED"])
    launcher.close()
    wait_until(lambda: groups() == ["REMOVED", "REMOVED"])


def sites_on(node: Any) -> list[int]:
    """The processes of the sites on a node."""
    raylet = node.all_processes["raylet"][0].process.pid
    named = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(raylet)}
    return [pid for pid, words in named.items() if b"\0work\0--name\0ray-" in words]


class Once:
    """A reader that does something when the first episodes have ended, and sees what sites come."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act
        self.sites: set[str] = set()

    def on(self, event: Event) -> None:
        if isinstance(event, SitesChanged):
            self.sites.update(site.name for site in event.sites)
        if isinstance(event, EpisodesSealed) and (act := self._act) is not None:
            self._act = None
            act()

    def close(self) -> None: ...


SEES_TWO = """
import os
import gymnasium
import numpy as np


class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        has_both = sorted(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) == ["0", "1"]
        return np.zeros(2, np.float32), 0.0, True, False, {"success": has_both}
"""


TWO = {"num_cpus": 1, "num_gpus": 2, "object_store_memory": 80 << 20}
"""A node for one site of two GPUs."""


@contextlib.contextmanager
def run_on_two_gpus(folder: Path, act: Callable[[], None]) -> Iterator[None]:
    """A run on one site of two GPUs that falls by `act`, up to where its place is given back."""
    (folder / "sees_two.py").write_text(SEES_TWO)
    config = toys(env=(f"{folder}/sees_two.py:Env",), episodes=600)
    where = MachinesConfig(where="ray", sites=1, site=SiteConfig(gpus=2, lease_s=4.0))
    reader = Once(act)
    with Machines(where) as machines, Run.new(config, folder / "run") as run:
        report = run.finish(elsewhere=machines, readers=[reader])
        yield
    assert report.complete
    assert report.overall.rate == 1.0
    assert reader.sites == {"ray-1", "ray-2"}


@pytest.mark.usefixtures("quiet")
def test_a_killed_site_of_two_gpus_comes_again_before_others_have_them(
    tmp_path: Path, cluster: Any
) -> None:
    import ray

    node = cluster.add_node(**TWO)
    ran = tmp_path / "ran"
    work: list[Any] = []

    def kill() -> None:
        work.append(ray.remote(lambda: ran.touch()).options(num_cpus=0, num_gpus=1).remote())
        assert not ray.wait(work, timeout=2)[0]
        (site,) = sites_on(node)
        os.kill(site, signal.SIGKILL)

    with run_on_two_gpus(tmp_path, kill):
        assert not ran.exists()
    ray.get(work, timeout=DEADLINE_S)
    assert ran.exists()


@pytest.mark.usefixtures("quiet")
def test_a_site_of_two_gpus_finds_another_place_when_its_node_is_gone(
    tmp_path: Path, cluster: Any
) -> None:
    nodes = [cluster.add_node(**TWO) for _ in range(2)]

    def kill() -> None:
        (node,) = (node for node in nodes if sites_on(node))
        cluster.remove_node(node, allow_graceful=False)

    with run_on_two_gpus(tmp_path, kill):
        assert groups().count("CREATED") == 1
    wait_until(lambda: groups() == ["REMOVED", "REMOVED"])


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


@pytest.mark.timeout(900)
def test_more_nodes_are_asked_for_where_ray_can_have_them(tmp_path: Path) -> None:
    growing = pytest.importorskip("support.growing_ray")
    if subprocess.run([*growing.APART, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespaces of one's own may be made here")
    # The shell stays, as the parent of what is left without one.
    program = '"$@"; exit $?'
    words = [*growing.APART, "--kill-child", "sh", "-c", program, "sh", sys.executable]
    words += [growing.__file__, str(tmp_path)]
    paths = os.pathsep.join(path for path in sys.path if path)
    with open(tmp_path / "log", "wb") as log:
        done = subprocess.run(
            words, check=False, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": paths}
        )
    assert done.returncode == 0, (tmp_path / "log").read_text(errors="replace")[-4000:]
    assert json.loads((tmp_path / "found.json").read_text()) == {"complete": True, "sites": 2}
