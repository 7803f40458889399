"""Sites as actors of a Ray cluster.

Ray places them and says when they end. Nothing rests on its word that something did not run: an
actor that Ray counts as dead may go on and deliver, and its leases stand until it is silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.errors import ConfigError, MissingExtraError, UsageError
from hocket.machines.commands import END_S, RESTARTS, SiteProcess, work_words
from hocket.machines.server import FetchError
from hocket.runs.sites import MachinesConfig
from hocket.system.bounded_yaml import read_yaml

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle
    from ray.util.placement_group import PlacementGroup

_LOOK_S = 2.0
"""Seconds between two looks at what else the cluster can place."""
_PATIENCE_S = 30.0
"""Seconds for which a site waits for its place before that is said."""
_GIVEN_S = 30.0
"""Seconds for what a site has announced to come out of its pipe."""


class SiteActor:
    """Runs a site beside itself: whatever becomes of the actor, the site ends with it."""

    def __init__(self) -> None:
        self._site: SiteProcess | None = None
        self._given: dict[int, bytes] = {}
        self._has_more = threading.Condition()

    def run(self, url: str, credentials: str, name: str) -> str:
        """Run a site to its end, and say how it ended."""
        site = SiteProcess(name, work_words(sys.executable, name, url), credentials, gives=True)
        self._site = site
        threading.Thread(target=self._take, args=(site,), daemon=True).start()
        try:
            while site.code() is None:
                time.sleep(0.1)
            return site.ending()
        finally:
            site.end(END_S)

    def _take(self, site: SiteProcess) -> None:
        for number, data in site.given():
            with self._has_more:
                self._given[number] = data
                self._has_more.notify_all()

    def fetch(self, number: int) -> Any:
        """What the site has given under a number, once. Ray keeps it in the object store of this
        node, from which the driver's node takes it."""
        with self._has_more:
            self._has_more.wait_for(lambda: number in self._given, _GIVEN_S)
            return np.frombuffer(self._given.pop(number), np.uint8)

    def hand(self, version: int, weights: Any) -> None:
        """Hand on weights that Ray has brought to this node, once for all sites on it."""
        if self._site is not None:
            self._site.hand(version, memoryview(weights))


@dataclass(slots=True)
class _Placed:
    name: str
    actor: ActorHandle
    ending: ObjectRef
    """Of the account of how it ended."""
    group: PlacementGroup | None
    """Keeps its place on one node for it, and for the one that follows it there."""
    tell_at: float
    """When it is said that it has no place yet, if so."""


class RayLauncher:
    """Keeps a number of sites placed, or as many as the cluster has room for."""

    outlives = False

    def __init__(self, config: MachinesConfig) -> None:
        self._ray = _import_ray()
        self._config = config
        self._count = None if config.sites == "auto" else config.sites
        self._most = 0
        """The most sites that there was room for."""
        self._is_told = False
        """True once it was said that no node is large enough."""
        self._named = 0
        self._restarts = RESTARTS
        self._url = ""
        self._credentials = ""
        self._sites: list[_Placed] = []
        self._carried: tuple[bytes, ObjectRef] | None = None
        """The weights that were put into Ray's object store last, and Ray's reference to them."""
        self._looked = 0.0
        self._has_begun = False
        address = "auto" if config.where == "ray" else config.where
        if not self._ray.is_initialized():
            try:
                self._ray.init(address=address, log_to_driver=False, runtime_env=self._runtime())
            except (ConnectionError, RuntimeError) as exc:
                raise UsageError(
                    f"No Ray cluster answers at {address!r}: {exc}. Start one with `ray start "
                    f"--head`, or name it: --machines ray://HOST:10001."
                ) from exc
            self._has_begun = True

    def _runtime(self) -> dict[str, Any]:
        file = self._config.site.runtime_env
        if not file:
            return {}
        found = read_yaml(file, "--site.runtime-env") or {}
        if not isinstance(found, dict):
            raise ConfigError(f"--site.runtime-env {file} must be keys with values.")
        return found

    def start(self, port: int, credentials: str) -> None:
        host = self._ray.util.get_node_ip_address()
        self._url, self._credentials = f"wss://{host}:{port}", credentials
        self._fill()

    def poll(self) -> Sequence[tuple[str, str]]:
        told = []
        for site in list(self._sites):
            if not self._ray.wait([site.ending], timeout=0)[0]:
                continue
            self._sites.remove(site)
            try:
                told.append((site.name, self._ray.get(site.ending)))
            except self._ray.exceptions.RayError:
                # Ray says that it is gone, maybe its node too; only its silence will show that.
                self._kill(site)
                self._release(site)
            if self._restarts > 0:
                self._restarts -= 1
                self._place(site.group)
            else:
                self._release(site)
        if time.monotonic() - self._looked > _LOOK_S:
            self._fill()
            if self._places():
                told += self._waiting()
            elif not self._is_told:
                self._is_told = True
                told.append(("ray", self._too_small()))
        return told

    def carry(self, site: str, version: int, data: bytes) -> bool:
        if (placed := self._called(site)) is None:
            return False
        try:
            if self._carried is None or self._carried[0] is not data:
                stored = self._ray.put(np.frombuffer(data, np.uint8))
                self._carried = (data, stored)
            placed.actor.hand.remote(version, self._carried[1])
        except self._ray.exceptions.RayError:
            return False
        return True

    async def fetch(self, site: str, number: int) -> bytes:
        if (placed := self._called(site)) is None:
            raise FetchError(f"{site} is gone, with what it had collected.")
        try:
            found = await asyncio.wrap_future(placed.actor.fetch.remote(number).future())
        except self._ray.exceptions.RayError as exc:
            raise FetchError(f"{site}: what it had collected did not come: {exc}") from exc
        return bytes(found)

    def is_hopeless(self) -> bool:
        return not self._sites and self._named > 0

    def close(self) -> None:
        ending, self._sites = self._sites, []
        self._carried = None
        for site in ending:
            self._kill(site)
            self._release(site)
        if self._count is None and self._named and self._ray.is_initialized():
            self._ask_for(0)
        if self._has_begun:
            self._has_begun = False
            self._ray.shutdown()

    def _called(self, name: str) -> _Placed | None:
        return next((site for site in self._sites if site.name == name), None)

    def _kill(self, site: _Placed) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(site.actor)

    def _release(self, site: _Placed) -> None:
        if site.group is not None and self._ray.is_initialized():
            self._ray.util.remove_placement_group(site.group)
            site.group = None

    def _fill(self) -> None:
        """Place what is missing: the number that was asked for, once, or what there is more room
        for than there was. Other work on the nodes is not counted: a site then waits for its place.
        Where Ray can have more nodes, it is asked for room for one site more."""
        self._looked = time.monotonic()
        before, self._most = self._most, max(self._most, self._count or self._places())
        if self._count is None:
            self._ask_for(self._most + 1)
        for _ in range(self._most - before):
            self._restarts += RESTARTS
            self._place()

    def _ask_for(self, sites: int) -> None:
        """Have Ray's autoscaler, where there is one, see to it that so many sites have room."""
        from ray.autoscaler.sdk import request_resources

        wanted = {name: math.ceil(amount) for name, amount in self._wanted().items()}
        request_resources(bundles=[wanted] * sites)

    def _places(self) -> int:
        """How many sites the nodes of the cluster could have, if they ran nothing else."""
        wanted = self._wanted().items()
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(
            min((int(node.get(name, 0) // amount) for name, amount in wanted), default=1)
            for node in nodes
        )

    def _wanted(self) -> dict[str, float]:
        """What a site needs, as Ray counts resources."""
        site = self._config.site
        wanted = {"CPU": site.cpus, "GPU": site.gpus, "memory": site.memory or 0}
        return {name: amount for name, amount in wanted.items() if amount > 0}

    def _needs(self) -> str:
        return ", ".join(f"{name} {amount:g}" for name, amount in self._wanted().items())

    def _too_small(self) -> str:
        return (
            f"has no node that is large enough for a site ({self._needs()}), and waits for one. "
            f"Lower --site.cpus, --site.gpus or --site.memory, or add a node."
        )

    def _waiting(self) -> list[tuple[str, str]]:
        """Say of sites of several GPUs, once, that Ray has no place for them."""
        now, waiting = time.monotonic(), []
        for site in self._sites:
            if site.group is not None and now > site.tell_at:
                site.tell_at = math.inf
                state = self._ray.util.placement_group_table(site.group)["state"]
                if state in ("PENDING", "RESCHEDULING"):
                    waiting.append(site.name)
        account = (
            f"has no place yet for {', '.join(waiting)}: each needs {self._needs()} on one node, "
            f"and what is large enough is taken. The others go on."
        )
        return [("ray", account)] if waiting else []

    def _place(self, group: PlacementGroup | None = None) -> None:
        """Place a site: where it has several GPUs, in a group, which keeps them for it."""
        self._named += 1
        name = f"ray-{self._named}"
        site = self._config.site
        strategy: Any = "SPREAD"
        if site.gpus > 1:
            group = group or self._ray.util.placement_group([self._wanted()], "STRICT_PACK")
            strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
        remote = self._ray.remote(SiteActor).options(
            num_cpus=site.cpus,
            num_gpus=site.gpus,
            memory=site.memory or None,
            max_restarts=0,
            max_concurrency=4,
            scheduling_strategy=strategy,
        )
        actor = remote.remote()
        ending = actor.run.remote(self._url, self._credentials, name)
        self._sites.append(_Placed(name, actor, ending, group, time.monotonic() + _PATIENCE_S))


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as exc:
        raise MissingExtraError(
            "--machines ray needs the package 'ray'. Run: pip install 'hocket[ray]'"
        ) from exc
    return ray
