"""Turns segments into new weights: the one owner of network, optimizer, version and queue; and how
the collecting side reaches it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from hocket.train.algorithms.grpo import GRPO
from hocket.train.algorithms.ppo import PPO
from hocket.train.algorithms.rollout import Parcel, in_trial_order
from hocket.train.algorithms.update import Comparison, Ranks
from hocket.train.config import Level, TrainConfig
from hocket.train.learner import checkpoint
from hocket.train.learner.queue import QueueConfig, SegmentQueue
from hocket.train.learner.weights import WeightBlock
from hocket.train.networks.building import Description, make_network
from hocket.train.networks.contract import trainable_parameters

_RNG = "rng"


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """What the learner says after an update."""

    version: int
    """The version of the new weights."""
    episodes: int
    """Episodes that ended in what was learnt from."""
    dropped: int
    """Episodes that were too old to learn from, since the last update."""
    staleness: int
    """Versions that the oldest chunk was behind."""
    learn_s: float
    """Seconds that the update took, publishing included."""
    measures: Mapping[str, float]
    """What the algorithm measured, by name."""


class Learner:
    """One thread calls it. After each update the weights are published in the block."""

    def __init__(
        self,
        config: TrainConfig,
        description: Description,
        ranks: Ranks,
        *,
        block_fd: int | None = None,
        resume: Path | None = None,
    ) -> None:
        torch.set_num_threads(config.threads)
        self.config = config
        self.description = description
        self.network: Any = make_network(config, description, resume)
        ranks.same_start(self.network)
        # What GRPO is held to is the policy that training began with, also after a resume.
        self._start: Any = make_network(config, description, None) if config.kl_weight else None
        self.network.to(config.device)
        self._parameters = trainable_parameters(self.network)
        self._optimizer = torch.optim.Adam(self._parameters.values(), lr=config.lr, eps=1e-5)
        self._rng = torch.Generator().manual_seed(config.seed * 1000 + ranks.rank)
        self.version = 0
        self.queue = SegmentQueue(QueueConfig(batch=config.batch, max_staleness=config.staleness))
        if resume is not None:
            self._restore(resume)
        self._algorithm = self._make_algorithm(ranks)
        self.block = WeightBlock(self._parameters, block_fd)
        self.block.publish(self._parameters, self.version)

    def update(self, floor: int, fraction: float) -> Updated | None:
        """Learns from the next batch, if there is one that may be taken. `floor` is the oldest
        version in flight; `fraction` of the training is done."""
        if not self.queue.is_due(self.version, floor):
            return None
        began = time.perf_counter()
        taken = self.queue.take(self.version)
        end = self.config.lr if self.config.lr_end is None else self.config.lr_end
        for group in self._optimizer.param_groups:
            group["lr"] = linear(self.config.lr, end, fraction)
        measures = self._algorithm.update(
            in_trial_order(taken.segments), version=self.version, rng=self._rng
        )
        self.version += 1
        learnt = time.perf_counter()
        self.block.publish(self._parameters, self.version)
        measures |= {
            "publish_s": time.perf_counter() - learnt,
            "staleness": taken.mean_staleness,
            "chunks": float(sum(len(segment) for segment in taken.segments)),
            "lr": self._optimizer.param_groups[0]["lr"],
        }
        return Updated(
            version=self.version,
            episodes=taken.episodes,
            dropped=taken.dropped,
            staleness=taken.staleness,
            learn_s=time.perf_counter() - began,
            measures=measures,
        )

    def save(self, run: Path, counters: Mapping[str, Any]) -> Path:
        """Writes a checkpoint with what the collecting side has to remember, and returns its
        folder."""
        optimizer = checkpoint.optimizer_tensors(self._optimizer, list(self._parameters))
        return checkpoint.save_checkpoint(
            run,
            self.version,
            weights=self.network.state_dict(),
            optimizer={**optimizer, _RNG: self._rng.get_state()},
            policy=self.description.to_plain(),
            state={**counters, "version": self.version},
        )

    def _restore(self, folder: Path) -> None:
        tensors = checkpoint.read_tensors(folder / checkpoint.OPTIMIZER)
        self._rng.set_state(tensors.pop(_RNG))
        checkpoint.load_optimizer(self._optimizer, list(self._parameters), tensors)
        self.version = int(checkpoint.read_table(folder / checkpoint.STATE)["version"])

    def _make_algorithm(self, ranks: Ranks) -> PPO | GRPO:
        config = self.config
        # Where a chunk's actions cannot be told apart, only the whole has a probability.
        finest: Level = "action" if self.network.is_factorised else "chunk"
        comparison = Comparison(
            level=config.ratio or finest,
            correction=config.corrected_by,
            truncate=config.truncate,
        )
        if config.algo == "ppo":
            return PPO(self.network, self._optimizer, config, comparison, ranks)
        start = None if self._start is None else self._start.to(config.device)
        return GRPO(self.network, self._optimizer, config, comparison, ranks, start)


def linear(start: float, end: float, fraction: float) -> float:
    """Goes from `start` to `end` as `fraction` goes from 0 to 1, and stays at `end` after that."""
    return start + (end - start) * min(1.0, max(0.0, fraction))


class LearnerLink(Protocol):
    """The collecting side's way to the learner. None of it waits, except `finish`."""

    block: WeightBlock
    """Where new weights appear."""

    def put(self, parcel: Parcel) -> None:
        """Gives the learner what was collected."""
        ...

    def tell(self, *, floor: int, fraction: float) -> None:
        """Tells the oldest version in flight, and the share of the training that is done."""
        ...

    def news(self) -> list[Updated]:
        """Returns the updates since this was asked last."""
        ...

    def save(self, counters: Mapping[str, Any]) -> None:
        """Writes a checkpoint with these counters, soon, between two updates."""
        ...

    def finish(self, counters: Mapping[str, Any]) -> list[Updated]:
        """Ends learning with a checkpoint, and returns the updates that were not told yet."""
        ...

    def close(self) -> None: ...


class InProcess:
    """A learner on the caller's own thread. It learns when it is asked for news: everything else
    stands still meanwhile, which is what synchronous means."""

    def __init__(
        self,
        config: TrainConfig,
        description: Description,
        run: Path,
        *,
        ranks: Ranks,
        resume: Path | None,
    ) -> None:
        self.learner = Learner(config, description, ranks, resume=resume)
        self.block = self.learner.block
        self._run = run
        self._ranks = ranks
        self._floor, self._fraction = 0, 0.0

    def put(self, parcel: Parcel) -> None:
        self.learner.queue.put(parcel)

    def tell(self, *, floor: int, fraction: float) -> None:
        self._floor, self._fraction = floor, fraction

    def news(self) -> list[Updated]:
        updated = self.learner.update(self._floor, self._fraction)
        return [] if updated is None else [updated]

    def save(self, counters: Mapping[str, Any]) -> None:
        if self._ranks.is_first:
            self.learner.save(self._run, counters)

    def finish(self, counters: Mapping[str, Any]) -> list[Updated]:
        self.save(counters)
        return []

    def close(self) -> None:
        self.block.close()
