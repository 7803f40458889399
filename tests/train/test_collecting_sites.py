"""Training with sites that collect, on a point that should reach the origin."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.core.data import Trial
from hocket.core.events import AttemptFailed, AttemptsBegan, EpisodesSealed
from hocket.errors import UsageError, WireError
from hocket.machines import protocol
from hocket.machines.commands import HANDED, Outlet
from hocket.machines.leasing.entries import Lease, LeaseId
from hocket.machines.leasing.leases import LeaseBook
from hocket.machines.machines import Machines
from hocket.machines.ray import RayLauncher, SiteActor, _Placed
from hocket.machines.server import FetchError
from hocket.machines.site.link import DriverLink
from hocket.machines.training.site import CollectingWork, packed
from hocket.machines.training.sites import CollectingDriver
from hocket.records.folder import RunFolder
from hocket.records.run_file import load_about
from hocket.runs.elsewhere import Work
from hocket.runs.sites import MachinesConfig, SiteConfig
from hocket.train.algorithms.stretches import Stretch
from hocket.train.collect.elsewhere import FloorRose, Gathered, WorkGrew
from hocket.train.learner.weights import PackedWeights, WeightBlock
from hocket.train.loop import Trained, train
from support.processes import DEADLINE_S, children, wait_gone, wait_until
from support.sites import ThreadSites
from support.trajectories import stretch
from train.test_training import ENV, records, settings, success

TRIALS = [Trial(ENV, "point", seed) for seed in range(4)]


def two_chunks(trial: Trial, first: int, *, ends: bool) -> Stretch:
    """Two chunks of the first attempt at a trial."""
    rng = np.random.default_rng(0)
    return stretch(rng, chunks=2, first=first, terminated=ends, trial=trial)


class Desk:
    """A driver of collecting sites, what it has posted and told, and sites that are played by
    hand."""

    def __init__(self, folder: Path) -> None:
        self.posts: list[tuple[str, protocol.Message]] = []
        self.told: list[Any] = []
        like = {"w": torch.zeros(3)}
        self.block = WeightBlock(like)
        self.publish(0)
        work = Work(
            config=settings(mode="async"),
            folder=RunFolder.at(folder),
            planned=(),
            remaining=TRIALS[:1],
            done=(),
            readers=(self,),
            sinks=(),
            record=lambda *_: {},
            begin=lambda _: None,
            learn=lambda *_: None,
            in_order=True,
        )
        self.driver = CollectingDriver(
            work,
            SiteConfig(lease_s=10.0),
            lambda site, message: self.posts.append((site, message)),
            weights=PackedWeights(self.block, like),
            tell=self.on,
        )
        self.driver.start(0.0)

    def on(self, event: Any) -> None:
        self.told.append(event)

    def close(self) -> None: ...

    def publish(self, version: int) -> None:
        self.block.publish({"w": torch.full((3,), float(version))}, version)

    def join(self, site: str, holds: list[LeaseId] | None = None) -> None:
        self.driver.open(protocol.SiteHello(protocol.PROTOCOL, hocket.__version__, site, site))
        joined = protocol.Joined(1, 1, "inputs", {}, holds=holds or [])
        self.hear(site, joined)
        self.driver.turn(0.0)

    def hear(self, site: str, message: protocol.Message) -> None:
        self.driver.hear(site, message, 0.0)

    def collected(self, site: str, lease: LeaseId, one: Stretch) -> None:
        self.hear(
            site, protocol.CollectedPart(*lease, packed(one, {"success": 1.0}), is_whole=True)
        )

    def take(self, kind: type[Any]) -> list[Any]:
        """What was posted or told of a kind since the last time."""
        found = [m for _, m in self.posts if isinstance(m, kind)]
        found += [event for event in self.told if isinstance(event, kind)]
        self.posts = [pair for pair in self.posts if not isinstance(pair[1], kind)]
        self.told = [event for event in self.told if not isinstance(event, kind)]
        return found

    def lease(self) -> LeaseId:
        (leased,) = self.take(protocol.Leased)
        ((trial, attempt, *_),) = leased.leases
        return LeaseId(trial, attempt)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_site_has_weights_before_it_has_a_trial_and_one_version_at_a_time(desk: Desk) -> None:
    desk.driver.plan(TRIALS[:1])
    desk.join("a")
    assert [type(m) for _, m in desk.posts][-2:] == [protocol.Weights, protocol.Leased]
    assert desk.take(FloorRose) == [FloorRose(site="a", floor=0)]
    desk.take(protocol.Weights)
    for version in (1, 2):
        desk.publish(version)
        desk.driver.turn(0.0)
    assert not desk.take(protocol.Weights), "It has not said yet that it has the last ones."
    desk.hear("a", protocol.Follows(0, 0))
    desk.driver.turn(0.0)
    (weights,) = desk.take(protocol.Weights)
    assert (weights.version, weights.is_whole) == (2, True)


def test_stretches_are_told_once_in_order_whatever_is_sent_again(desk: Desk) -> None:
    desk.driver.plan(TRIALS[:1])
    desk.join("a")
    lease = desk.lease()
    early = two_chunks(TRIALS[0], 0, ends=False)
    desk.collected("a", lease, early)
    desk.driver.disconnect("a")
    desk.join("a", holds=[lease])
    desk.collected("a", lease, early)
    desk.collected("a", lease, two_chunks(TRIALS[0], 2, ends=True))
    gathered = desk.take(Gathered)
    assert [list(one.stretch.chunk) for one in gathered] == [[0, 1], [2, 3]]
    assert gathered[1].terms == {"success": 1.0}
    end = protocol.SealedEpisode(*lease, "success", 16, 1.0, True, False, 4, 0.5, [], b"", [])
    desk.hear("a", end)
    desk.driver.turn(0.0)
    (sealed,) = desk.take(EpisodesSealed)
    assert sealed.episodes[0].trial == TRIALS[0]
    desk.collected("a", lease, early)
    assert not desk.take(Gathered), "Its lease stands no more."


def test_a_lost_site_costs_what_it_ran_and_bounds_nothing_any_more(desk: Desk) -> None:
    desk.driver.plan(TRIALS[:1])
    desk.join("a")
    lease = desk.lease()
    desk.hear("a", protocol.Began([lease]))
    desk.hear("a", protocol.Follows(0, 0))
    desk.take(FloorRose)
    desk.driver.tick(11.0)
    (failed,) = desk.take(AttemptFailed)
    assert (failed.attempt, failed.again) == (0, True)
    assert desk.take(FloorRose) == [FloorRose(site="a", floor=None)]
    desk.collected("a", lease, two_chunks(TRIALS[0], 0, ends=True))
    assert not desk.take(Gathered)
    desk.join("b")
    again = desk.lease()
    assert (again.trial, again.attempt) == (lease.trial, 1)
    # The trial was begun once, whoever runs it.
    begun = [attempt for event in desk.take(AttemptsBegan) for attempt in event.attempts]
    assert begun == [0, 1]


def test_steps_are_counted_once_and_before_what_came_of_them(desk: Desk) -> None:
    desk.driver.plan(TRIALS[:1])
    desk.join("a")
    lease = desk.lease()
    for _ in range(2):
        desk.hear("a", protocol.Beat(1.0, [8, 2, 2, 2, 0.5, 0.25], (0, 0), ""))
    desk.collected("a", lease, two_chunks(TRIALS[0], 0, ends=True))
    kinds = [type(event) for event in desk.told if isinstance(event, (WorkGrew, Gathered))]
    assert kinds == [WorkGrew, Gathered]
    assert desk.take(WorkGrew) == [WorkGrew(steps=8, worked_s=0.5, inferred_s=0.25)]


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x81\xa5terms\x80"])
def test_what_is_no_trajectory_of_the_lease_is_refused(desk: Desk, data: bytes) -> None:
    desk.driver.plan(TRIALS[:1])
    desk.join("a")
    lease = desk.lease()
    with pytest.raises(WireError):
        desk.hear("a", protocol.CollectedPart(*lease, data, is_whole=True))
    with pytest.raises(WireError, match="another lease"):
        desk.collected("a", lease, two_chunks(TRIALS[1], 0, ends=True))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "sync"}, "--mode async"),
        ({"algo": "grpo", "batch": 16, "pin_version": True}, "--pin-version"),
    ],
)
def test_what_sites_cannot_collect_for_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        run_on(thread_sites(), tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


# -- whole runs ----------------------------------------------------------------------------------


def run_on(launcher: Any, folder: Path, *, resume: bool = False, **changes: Any) -> Trained:
    where = MachinesConfig(where="local:2", site=SiteConfig(lease_s=30.0))
    config = settings(**{"mode": "async", **changes})
    with Machines(where, launcher=launcher) as machines:
        return train(config, folder, resume=resume, say=None, machines=machines)


def thread_sites(count: int = 2) -> ThreadSites:
    return ThreadSites(count, kinds={"collect": CollectingWork})


def check_counts(result: Trained, staleness: int = 2) -> dict[str, Any]:
    updates = records(result, "update")
    numbers = [record["count/updates"] for record in updates]
    assert numbers == [float(n + 1) for n in range(len(numbers))]
    assert max(record["learn/max_staleness"] for record in updates) <= staleness
    return updates[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"algo": "grpo", "group": 4, "reward": "env"},
        {"algo": "rlpd", "replays": 2, "minibatch": 32},
        {"segment_chunks": 2, "max_staleness": 1},
    ],
)
def test_sites_keep_the_bound_and_lose_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    result = run_on(thread_sites(), tmp_path / "run", steps=1500, batch=8, **changes)
    assert result.complete
    last = check_counts(result, changes.get("max_staleness", 2))
    assert last["count/dropped"] == 0
    assert last["count/lost_attempts"] == 0
    about = load_about(tmp_path / "run")
    assert sorted(site["name"] for site in about["sites"]) == ["thread-0", "thread-1"]
    assert about["lanes"] == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_collect_what_one_machine_would_though_one_is_killed(tmp_path: Path) -> None:
    words = ["train", "--env", ENV, "--policy", "actor", "--policy.chunk-length", "4"]
    words += ["--policy.hidden", "32", "32", "--policy.std", "0.6", "--lanes", "1"]
    words += ["--batch", "16", "--lr", "3e-3", "--value-only", "0", "--epochs", "8"]
    words += ["--steps", "5000", "--eval-every", "1200", "--eval-episodes", "10"]
    words += ["--checkpoint-every", "1000", "--mode", "async", "--machines", "local:2"]
    log = tmp_path / "log"
    with open(log, "wb") as file:
        driver = subprocess.Popen(
            [sys.executable, "-m", "hocket", *words, "--out", "run"],
            cwd=tmp_path,
            stdout=file,
            stderr=file,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    result = Trained(run=tmp_path / "run", env_steps=0, best=None, complete=True)

    def updates() -> int:
        metrics = tmp_path / "run" / "metrics.jsonl"
        return len(records(result, "update")) if metrics.exists() else 0

    try:
        # Three processes import torch first.
        wait_until(lambda: updates() >= 3 or driver.poll() is not None, 3 * DEADLINE_S)
        sites = [
            pid
            for pid in children(driver.pid)
            if b"\0work\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(sites) == 2, log.read_text()
        os.kill(sites[0], signal.SIGKILL)
        below = children(driver.pid)
        assert driver.wait(3 * DEADLINE_S) == 0, log.read_text()
    finally:
        driver.kill()
        driver.wait()
    wait_gone(below)
    last = check_counts(result)
    assert last["count/lost_attempts"] <= 2
    assert last["count/dropped"] == 0
    assert success(result)[-1] >= success(result)[0] + 0.3
    assert max(success(result)) >= 0.9


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_on_sites_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    first = run_on(thread_sites(), tmp_path / "run", steps=600, batch=8, checkpoint_every=200)
    before = check_counts(first)
    again = run_on(thread_sites(), tmp_path / "run", resume=True, steps=1200, batch=8)
    assert again.complete
    numbers = [record["count/updates"] for record in records(again, "update")]
    assert numbers == [float(n + 1) for n in range(len(numbers))]
    assert numbers[-1] > before["count/updates"]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray cluster whose only node has no room for a site."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 << 20}
        found = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=found.address, log_to_driver=False)
        try:
            yield found
        finally:
            ray.shutdown()
            found.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_training_on_a_ray_cluster_survives_a_node(tmp_path: Path, cluster: Any) -> None:
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=80 << 20) for _ in range(2)]
    where = MachinesConfig(where="ray", sites=2, site=SiteConfig(lease_s=4.0))

    class KillANode:
        """Takes a node away once both sites have collected."""

        done = 0

        def on(self, event: Any) -> None:
            self.done += isinstance(event, EpisodesSealed)
            if self.done == 3 and len(nodes) == 2:
                cluster.remove_node(nodes.pop(), allow_graceful=False)

        def close(self) -> None: ...

    config = settings(mode="async", steps=5000, eval_every=1200, eval_episodes=10, epochs=8)
    with Machines(where) as machines:
        result = train(
            config, tmp_path / "run", readers=lambda _: [KillANode()], say=None, machines=machines
        )
    assert result.complete
    assert not nodes[1:]
    last = check_counts(result)
    assert last["count/lost_attempts"] <= 4
    assert max(success(result)) >= 0.9


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_a_site_gives_lies_in_the_object_store_of_its_node(cluster: Any) -> None:
    import ray
    from ray.experimental import get_object_locations

    class Full(SiteActor):
        def __init__(self) -> None:
            super().__init__()
            self._given = {7: bytes(range(256)) * 4096, 8: b"small"}

    node = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    actor = ray.remote(Full).options(num_cpus=1).remote()
    given = actor.fetch.remote(7)
    ray.wait([given], fetch_local=False)
    # Where an object lies Ray tells a while after it is there.
    wait_until(lambda: bool(get_object_locations([given])[given]["node_ids"]))
    found = get_object_locations([given])[given]
    assert found["node_ids"] == [node.node_id]
    assert found["object_size"] >= 1 << 20
    launcher = RayLauncher(MachinesConfig(where="ray", sites=1, site=SiteConfig()))
    launcher._sites.append(_Placed("one", actor, given, None, 0.0))
    assert asyncio.run(launcher.fetch("one", 8)) == b"small"
    with pytest.raises(FetchError, match="is gone"):
        asyncio.run(launcher.fetch("two", 9))
    ray.kill(actor)
    with pytest.raises(FetchError, match="did not come"):
        asyncio.run(launcher.fetch("one", 9))


class Shelf(ThreadSites):
    """Sites that give what they collect to whoever started them, which hands on so many."""

    def __init__(self, most: int) -> None:
        super().__init__(2, kinds={"collect": self._work})
        self.fetched: list[str] = []
        self._most = most
        self._given: dict[str, dict[int, bytes]] = {}

    def _work(self, welcome: protocol.Welcome, link: DriverLink) -> CollectingWork:
        mine, theirs = os.pipe()
        # Sites come in any order.
        (site,) = [site for site in self.sites if site is link._site]
        given = self._given[site._name] = {}

        def take() -> None:
            with open(mine, "rb") as file:
                while head := file.read(HANDED.size):
                    number, size = HANDED.unpack(head)
                    given[number] = file.read(size)

        threading.Thread(target=take, daemon=True).start()
        return CollectingWork(welcome, link, Outlet(theirs))

    def carry(self, site: str, version: int, data: bytes) -> bool:
        return False

    async def fetch(self, site: str, number: int) -> bytes:
        self.fetched.append(site)
        if len(self.fetched) > self._most:
            raise FetchError(f"{site} has lost it.")
        while number not in self._given[site]:
            await asyncio.sleep(0.001)
        return self._given[site].pop(number)


@pytest.mark.slow
@pytest.mark.parametrize("most", [10_000, 3])
def test_what_is_given_beside_the_connection_is_learnt_from_once(tmp_path: Path, most: int) -> None:
    shelf = Shelf(most)
    config = settings(mode="async", steps=1500, eval_every=1500, eval_episodes=2, epochs=2)
    where = MachinesConfig(where="local:1", site=SiteConfig())
    with Machines(where, launcher=shelf) as machines:
        result = train(config, tmp_path / "run", say=None, machines=machines)
    assert result.complete
    check_counts(result)
    # A site whose gifts do not come sends them, and whatever comes later, by its connection.
    assert len(shelf.fetched) > 10 if most > 10 else len(shelf.fetched) <= most + 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_carried", [True, False])
def test_weights_are_put_once_for_a_version_and_fetched_once_by_each_node(
    tmp_path: Path,
    cluster: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_carried: bool,
) -> None:
    """Four sites on two nodes; `is_carried` False shows what their connections would carry."""
    import ray
    from ray.experimental import get_object_locations

    nodes = [cluster.add_node(num_cpus=2, object_store_memory=80 << 20) for _ in range(2)]
    where = MachinesConfig(where="ray", sites=4, site=SiteConfig())
    carried: dict[int, set[str]] = {}
    puts: list[Any] = []
    homes: list[set[str]] = []
    sent = Counter[int]()
    carry, put, post = RayLauncher.carry, ray.put, CollectingDriver._send_weights
    fetch, collect = RayLauncher.fetch, CollectingDriver._collect
    fetched: list[int] = []
    stretches: list[int] = []
    grant = LeaseBook.grant

    def grant_all(self: LeaseBook, now: float, only: Any = None) -> list[Lease]:
        """Nobody begins before all sites are there: the fastest could do all there is to do."""
        return grant(self, now) if len(self._sites) == 4 else []

    async def fetch_one(self: Any, site: str, number: int) -> bytes:
        data = await fetch(self, site, number)
        fetched.append(len(data))
        return data

    def collect_one(self: Any, name: str, message: protocol.CollectedPart) -> None:
        stretches.append(len(message.data))
        collect(self, name, message)

    def keep(value: Any) -> Any:
        puts.append(put(value))
        return puts[-1]

    def note(self: Any, site: str, version: int, data: bytes) -> bool:
        if not is_carried:
            return False
        if puts and version not in carried:
            # The last one is everywhere: a site is given the next once it has that.
            homes.append(set(get_object_locations([puts[-1]])[puts[-1]]["node_ids"]))
        carried.setdefault(version, set()).add(site)
        return carry(self, site, version, data)

    def count(self: Any, site: str) -> None:
        before = self._post

        def posted(name: str, message: Any) -> None:
            sent[message.version] += len(message.data)
            before(name, message)

        self._post = posted
        try:
            post(self, site)
        finally:
            self._post = before

    monkeypatch.setattr(LeaseBook, "grant", grant_all)
    monkeypatch.setattr(ray, "put", keep)
    monkeypatch.setattr(RayLauncher, "carry", note)
    monkeypatch.setattr(RayLauncher, "fetch", fetch_one)
    monkeypatch.setattr(CollectingDriver, "_collect", collect_one)
    monkeypatch.setattr(CollectingDriver, "_send_weights", count)
    config = settings(mode="async", steps=2500, eval_every=2500, eval_episodes=4, epochs=2)
    with Machines(where) as machines:
        result = train(config, tmp_path / "run", say=None, machines=machines)
    assert result.complete
    check_counts(result)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{len(puts)} puts for {len(carried)} versions, most sites of one "
            f"{max(map(len, carried.values()), default=0)}; copies {sorted(map(len, homes))}; "
            f"the driver sent {sorted(sent.values())} bytes by versions; "
            f"{len(fetched)} of {len(stretches)} stretches were fetched, {sum(fetched)} bytes\n"
        )
    # Every stretch came through Ray, once, and none by a connection.
    # What still comes once the training has all it needs is let go.
    assert fetched[: len(stretches)] == stretches != []
    if not is_carried:
        assert sent
        return
    assert not sent
    assert len(puts) == len(carried) > 2
    assert max(map(len, carried.values())) == 4
    assert max(map(len, homes)) == 3  # The driver's node has the one that was put.
    assert all(home <= {node["NodeID"] for node in ray.nodes()} for home in homes)
    assert len(nodes) == 2
