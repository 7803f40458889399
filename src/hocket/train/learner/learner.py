"""Turns segments into new weights: the one owner of network, optimizer, version and queue."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hocket.train.algorithms.grpo import GRPO, GRPOConfig
from hocket.train.algorithms.losses import Level, RatioConfig
from hocket.train.algorithms.ppo import PPO, PPOConfig
from hocket.train.collect.segments import Parcel, in_trial_order
from hocket.train.config import TrainConfig
from hocket.train.learner import checkpoint
from hocket.train.learner.queue import QueueConfig, SegmentQueue
from hocket.train.learner.ranks import Ranks
from hocket.train.learner.schedule import linear
from hocket.train.learner.weights import WeightBlock
from hocket.train.networks.building import Description, make_network
from hocket.train.networks.contract import trainable_parameters

_RNG = "rng"


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """What the learner says after an update."""

    version: int
    episodes: int
    """Learnt from, ended in this update."""
    dropped: int
    staleness: int
    learn_s: float
    measures: Mapping[str, float]


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

    def put(self, parcel: Parcel) -> None:
        """Take what was collected into the queue."""
        self.queue.put(parcel)

    def update(self, floor: int, fraction: float) -> Updated | None:
        """Learn from the next batch, if there is one. `fraction` of the training is done."""
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
        """A checkpoint between two updates, with what the collecting side has to remember."""
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
        ratio = RatioConfig(
            level=config.ratio or finest,
            correction=config.corrected_by,
            truncate=config.truncate,
        )
        if config.algo == "grpo":
            start = None if self._start is None else self._start.to(config.device)
            settings = GRPOConfig(
                epochs=config.epochs,
                minibatches=config.minibatches,
                clip=config.clip,
                clip_high=0.28 if config.clip_high is None else config.clip_high,
                entropy=config.entropy,
                kl_weight=config.kl_weight,
                target_kl=config.target_kl,
                max_grad_norm=config.max_grad_norm,
                ratio=ratio,
            )
            return GRPO(self.network, self._optimizer, settings, ranks, start)
        return PPO(
            self.network,
            self._optimizer,
            PPOConfig(
                gamma=config.gamma,
                lam=config.lam,
                epochs=config.epochs,
                minibatches=config.minibatches,
                clip=config.clip,
                clip_high=config.clip if config.clip_high is None else config.clip_high,
                clip_value=config.clip_value,
                value_weight=config.value_weight,
                entropy=config.entropy,
                target_kl=config.target_kl,
                max_grad_norm=config.max_grad_norm,
                value_only=config.value_only,
                ratio=ratio,
            ),
            ranks,
        )
