"""A site that collects for a learner elsewhere: the engine and the trajectories of a run here, with
weights that come over the wire.

Stretches of an attempt are kept until the driver has settled it: after a connection broke they are
sent again, in order, and the driver takes each once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from safetensors.torch import load

from hocket.core import codec
from hocket.core.data import Episode
from hocket.core.events import EpisodesSealed, Event
from hocket.machines import protocol
from hocket.machines.commands import Outlet
from hocket.machines.leasing.entries import LeaseId
from hocket.machines.site.link import DriverLink
from hocket.machines.site.site_work import SiteWork
from hocket.results.showing.tally import Tally
from hocket.runs.assembly import Assembly
from hocket.train.algorithms.ranks import local_device
from hocket.train.algorithms.stretches import Stretch
from hocket.train.collect.rolling import (
    auto_lanes,
    base_of,
    engine_plan,
    fleet_of,
    max_batch,
    policy_of,
)
from hocket.train.collect.trajectories import Trajectories
from hocket.train.config import TrainConfig
from hocket.train.learner.weights import ReceivedWeights
from hocket.train.legs import depends_on
from hocket.train.networks.building import Description, make_network
from hocket.train.rewards import Rewards


class CollectingWork(SiteWork):
    """A site's part in a training run."""

    def __init__(
        self, welcome: protocol.Welcome, link: DriverLink, outlet: Outlet | None = None
    ) -> None:
        """`outlet`: takes what was collected, beside the first connection alone."""
        super().__init__(welcome, link)
        self._outlet = outlet
        self._weights = ReceivedWeights()
        self._coming: list[bytes] = []
        """Parts of the next weights that have come."""
        self._trajectories: Trajectories | None = None
        self._stretches: dict[LeaseId, list[bytes]] = {}
        """What attempts gave, until the driver has settled them."""
        self._sent: dict[LeaseId, int] = {}
        """How many of them were sent since the driver was told what is held here. The link's thread
        keeps it."""
        self._followed = (-1, -1)

    def run(self) -> None:
        config = TrainConfig.from_plain(self.welcome.config)
        config = replace(config, collect_device=local_device(config.collect_device))
        torch.set_num_threads(config.threads)
        rewards = Rewards(config.reward, config.network_name)
        description = Description.from_plain(self.welcome.start["description"])
        with contextlib.ExitStack() as stack:
            assembly = Assembly(config, config.lanes)
            stack.callback(assembly.close)
            assembly.require_envs()
            program = depends_on(config)
            base = base_of(config, assembly)
            if base is not None:
                stack.callback(base.close)
            # The network before training; its weights now come over the wire.
            made = make_network(config, description, None)
            policy = policy_of(config, description, base, made)
            if config.lanes == "auto":
                suite, task = self.welcome.trial[:2]
                lanes = auto_lanes(config, assembly, (suite, task), policy)
                config = replace(config, lanes=lanes)
            policy.limit(max_batch(config))
            policy.block = self._weights
            self._trajectories = Trajectories(
                config,
                self.welcome.start["tasks"],
                newest=lambda: self._weights.version,
                rewards=rewards,
                texts=policy.texts,
            )
            fleet = stack.enter_context(fleet_of(config, assembly, policy.spec))
            self._tally = Tally()
            readers = (self, self._tally)
            plan = engine_plan(config, policy, gives_back=True)
            engine = stack.enter_context(assembly.engine(policy, fleet, plan, readers))
            self._join(
                engine,
                lanes=config.lane_count,
                level="inputs",
                cores=assembly.cores(config.lane_count),
                depends_on=program,
            )

    # -- the engine's thread -------------------------------------------------------------------

    def on(self, event: Event) -> None:
        assert self._trajectories is not None
        for stretch in self._trajectories.on(event):
            self._send(self._trials.name(stretch.trial, stretch.attempt), stretch, {})
        if isinstance(event, EpisodesSealed):
            for episode in event.episodes:
                self._send_last(episode)
        super().on(event)
        self._follow()

    def _send_last(self, episode: Episode) -> None:
        assert self._trajectories is not None
        stretch, terms = self._trajectories.seal(episode), self._trajectories.terms(episode)
        if stretch is not None:
            self._send(self._trials.name(episode.trial, episode.attempt), stretch, terms)
        # Its steps are counted no later than what came of them.
        self._link.post(self.beat())

    def _send(self, name: LeaseId, stretch: Stretch, terms: dict[str, float]) -> None:
        data = packed(stretch, terms)
        self._stretches.setdefault(name, []).append(data)
        self._link.post_all(self._unsent(name))

    def _unsent(self, name: LeaseId) -> Iterator[protocol.Message]:
        """The messages of stretches that were not sent yet, on the link's thread."""
        if not self.has_told:
            return
        stretches = self._stretches.get(name, ())
        while (index := self._sent.get(name, 0)) < len(stretches):
            self._sent[name] = index + 1
            number = None if self._outlet is None else self._outlet.give(stretches[index])
            if number is not None:
                yield protocol.CollectedPart(*name, b"", is_whole=True, stored=number)
                continue
            for part in protocol.parts(stretches[index]):
                yield protocol.CollectedPart(*name, *part)

    def _follow(self) -> None:
        """Tell the driver which weights this site acts with, where that has changed."""
        assert self._trajectories is not None
        follows = (self._weights.version, self._trajectories.floor)
        if follows != self._followed:
            self._followed = follows
            self._link.post(protocol.Follows(*follows))

    # -- the link's thread ---------------------------------------------------------------------

    def hear(self, message: protocol.Message) -> None:
        if not isinstance(message, protocol.Weights):
            super().hear(message)
            return
        self._coming.append(message.data)
        if message.is_whole:
            data, self._coming = b"".join(self._coming), []
            self.receive(message.version, data)

    def receive(self, version: int, data: bytes) -> None:
        self._weights.take(version, load(data))
        self._trials.call(self._follow)
        self._wake()

    def meet(self, welcome: protocol.Welcome) -> None:
        self._coming = []
        # What was given to the outlet may be lost: all of it is sent again.
        self._close_outlet()
        super().meet(welcome)

    def close(self) -> None:
        super().close()
        self._close_outlet()

    def _close_outlet(self) -> None:
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            outlet.close()

    def _owed(self) -> Iterable[protocol.Message]:
        self._sent.clear()
        for name in list(self._stretches):
            yield from self._unsent(name)
        if self._weights.version >= 0:
            yield protocol.Follows(*self._followed)

    def _settle(self, leases: list[LeaseId]) -> None:
        super()._settle(leases)
        for name in leases:
            self._stretches.pop(name, None)
            self._sent.pop(name, None)


def packed(stretch: Stretch, terms: Mapping[str, float]) -> bytes:
    """A stretch of a trajectory as it travels, and what it adds to the log."""
    return codec.pack({"stretch": stretch.to_plain(), "terms": dict(terms)})
