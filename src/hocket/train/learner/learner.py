"""Turns stretches into new weights: the one owner of network, optimizer, version and queue."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hocket.train.algorithms.cloning import Cloning, Demonstrated, steps_of_update
from hocket.train.algorithms.grpo import GRPO
from hocket.train.algorithms.judging import Judging, save_judge
from hocket.train.algorithms.offpolicy import OffPolicy
from hocket.train.algorithms.ppo import PPO
from hocket.train.algorithms.ranks import Ranks
from hocket.train.algorithms.ratios import RatioRule
from hocket.train.algorithms.stretches import Parcel, Stretch, in_trial_order
from hocket.train.algorithms.update import StepShare
from hocket.train.config import Level, TrainConfig
from hocket.train.data.replay import REPLAY, ReplayBuffer
from hocket.train.data.store import DATA, open_data
from hocket.train.data.windows import Windows
from hocket.train.learner import checkpoint
from hocket.train.learner.statistics import Statistics
from hocket.train.learner.weights import WeightBlock
from hocket.train.networks.building import Description, Made, make_network
from hocket.train.networks.contract import (
    history_of,
    published_tensors,
    trainable_parameters,
)
from hocket.train.networks.memory import checkpoint_activations
from hocket.train.reward_terms import SUCCESS

_RNG, _PACE = "rng", "pace"
_OFF_POLICY = "off policy "
"""How the names of tensors begin that off-policy learning keeps."""
_ROWS_AT_A_TIME = 4096
"""Recorded rows that are measured at a time."""
_NEVER = -1
_REMEMBERED = 100_000
"""Attempts whose next chunk is known: far more than can be outstanding."""


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
        run: Path | None = None,
        made: Made | None = None,
        block_fd: int | None = None,
        resume: Path | None = None,
    ) -> None:
        """`run` is the run's folder, which holds recorded episodes where it learns from any. What
        was `made` in this process is not made again."""
        torch.set_num_threads(config.threads)
        self.config = config
        self.description = description
        made = made or make_network(config, description, resume, refers=True)
        self.network: nn.Module = made.network
        ranks.same_start(self.network)
        self._reference = made.reference
        if config.checkpoint_activations:
            checkpoint_activations(self.network)
        # A chunk's probability is that of the network that sampled it, which drops nothing out.
        self.network.to(config.device).eval()
        self._ranks = ranks
        self._parameters = trainable_parameters(self.network)
        # Fused: one call for all parameters, where small networks spend most of a step in calls.
        self._optimizer = torch.optim.Adam(
            self._parameters.values(), lr=config.lr, eps=1e-5, fused=True
        )
        self._rng = torch.Generator().manual_seed(config.seed * 1000 + ranks.rank)
        self._pace = StepShare()
        self._statistics = Statistics(
            self.network,
            # Rewards of success are of a known size, and GRPO compares returns of one group.
            scales_rewards=config.reward != SUCCESS and config.algo == "ppo",
            gamma=config.gamma,
        )
        self.version = 0
        self.corrected = 0
        """Rounds of corrections that are learnt from."""
        self.queue = StretchQueue(batch=config.batch_count, max_staleness=config.staleness)
        kept = {} if resume is None else self._restore(resume)
        self._algorithm = self._make_algorithm(run, kept)
        self._published = published_tensors(self.network)
        self.block = WeightBlock(self._published, block_fd)
        self.block.publish(self._published, self.version)

    def update(self, floor: int, fraction: float) -> Updated | None:
        """Learn from the next batch if one may be taken. `floor`: the oldest version in flight;
        `fraction`: the share of the training that is done."""
        is_cloning = isinstance(self._algorithm, Cloning | Judging)
        if not is_cloning and not self.queue.is_due(self.version, floor):
            return None
        began = time.perf_counter()
        taken = self.queue.take(self.version)
        end = self.config.lr if self.config.lr_end is None else self.config.lr_end
        for group in self._optimizer.param_groups:
            group["lr"] = linear(self.config.lr, end, fraction)
        measures = self._learn(in_trial_order(taken.stretches))
        self.version += 1
        learnt = time.perf_counter()
        self.block.publish(self._published, self.version)
        measures |= {
            "publish_s": time.perf_counter() - learnt,
            "staleness": taken.mean_staleness,
            "chunks": float(sum(len(stretch) for stretch in taken.stretches)),
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

    def _learn(self, stretches: list[Stretch]) -> dict[str, float]:
        """Update the weights, and what is measured of the data. What the network sees changes its
        units after an update; only the first time before one, since a critic that has learnt in
        one unit knows nothing in another, and a new policy hardly depends on them."""
        statistics, ranks = self._statistics, self._ranks
        if isinstance(self._algorithm, Cloning | Judging):
            if statistics.is_new:
                self._measure_data(self._algorithm.recorded.windows)
            return self._algorithm.update(self._rng)
        is_new = statistics.is_new
        if isinstance(self._algorithm, OffPolicy):
            if is_new and self._algorithm.recorded is not None:
                self._measure_data(self._algorithm.recorded.windows)
            elif is_new:
                statistics.add_seen(stretches, ranks)
            return self._algorithm.update(stretches, version=self.version, rng=self._rng)
        statistics.add_returns(stretches, ranks)
        if is_new:
            statistics.add_seen(stretches, ranks)
        if isinstance(self._algorithm, PPO):
            self._algorithm.reward_scale = statistics.reward_scale
        measures = self._algorithm.update(stretches, version=self.version, rng=self._rng)
        if not is_new:
            statistics.add_seen(stretches, ranks)
        return {**measures, "reward_scale": statistics.reward_scale}

    def take_corrections(self, run: Path, count: int) -> None:
        """Learn from this many rounds of corrections too."""
        self.corrected = count
        self._algorithm = self._make_algorithm(run, {})

    def judge(self, run: Path) -> dict[str, float]:
        """Calibrate and measure a reward model, and keep the result."""
        assert isinstance(self._algorithm, Judging)
        measured = self._algorithm.measure()
        save_judge(run, measured)
        return measured

    def _measure_data(self, windows: Windows) -> None:
        """Tell the network the units of what was recorded, all of it: they stay from then on."""
        for begin in range(0, len(windows), _ROWS_AT_A_TIME):
            rows = np.arange(begin, min(begin + _ROWS_AT_A_TIME, len(windows)))
            self._statistics.add_observation(windows.seen(rows, self.network.states), Ranks())

    def save(self, run: Path, counters: Mapping[str, Any]) -> Path:
        """Write a checkpoint with what the collecting side must remember; return its folder."""
        optimizer = checkpoint.optimizer_tensors(self._optimizer, list(self._parameters))
        if isinstance(self._algorithm, OffPolicy):
            kept = self._algorithm.to_tensors()
            optimizer |= {_OFF_POLICY + name: tensor for name, tensor in kept.items()}
        return checkpoint.save_checkpoint(
            run,
            self.version,
            weights=self._published,
            optimizer={
                **optimizer,
                _RNG: self._rng.get_state(),
                _PACE: torch.tensor(self._pace.share, dtype=torch.float64),
            },
            statistics=self._statistics.to_tensors(),
            policy=self.description.to_plain(),
            state={**counters, "version": self.version},
        )

    def _restore(self, folder: Path) -> dict[str, torch.Tensor]:
        """Go on from a checkpoint; return what off-policy learning has kept there."""
        tensors = checkpoint.read_tensors(folder / checkpoint.OPTIMIZER)
        kept = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_OFF_POLICY)}
        self._rng.set_state(tensors.pop(_RNG))
        self._pace.share = float(tensors.pop(_PACE))
        file = folder / checkpoint.STATISTICS
        self._statistics.load(checkpoint.read_tensors(file) if file.is_file() else {})
        checkpoint.load_optimizer(self._optimizer, list(self._parameters), tensors)
        state = checkpoint.read_table(folder / checkpoint.STATE)
        self.version = int(state["version"])
        self.corrected = int(state.get("corrected", 0))
        return {name.removeprefix(_OFF_POLICY): tensor for name, tensor in kept.items()}

    def _make_algorithm(
        self, run: Path | None, kept: Mapping[str, torch.Tensor]
    ) -> PPO | GRPO | OffPolicy | Cloning | Judging:
        config, beside = self.config, self._demonstrated(run)
        if config.is_cloning:
            assert beside is not None  # the configuration names them
            size = config.minibatch_of(self.network.chunk_length)
            steps = steps_of_update(config, size, self._ranks.size)
            kind = Judging if config.algo == "reward" else Cloning
            return kind(self._optimizer, beside, steps)
        if config.algo == "rlpd":
            return self._make_off_policy(run, beside, kept)
        # Where a chunk's actions cannot be told apart, only the whole has a probability.
        finest: Level = "action" if self.network.is_factorised else "chunk"
        comparison = RatioRule(
            level=config.ratio or finest,
            correction=config.correction or "decoupled",
        )
        common = (self.network, self._optimizer, config, comparison, self._ranks)
        if config.algo == "ppo":
            return PPO(*common, pace=self._pace, beside=beside)
        return GRPO(*common, self._reference, pace=self._pace, beside=beside)

    def _make_off_policy(
        self, run: Path | None, beside: Demonstrated | None, kept: Mapping[str, torch.Tensor]
    ) -> OffPolicy:
        config = self.config
        assert run is not None
        rows = int(kept["rows"]) if kept else 0
        own = ReplayBuffer(run / REPLAY, config.gamma, rows=rows, device=config.device)
        found = OffPolicy(self.network, self._optimizer, config, self.description, own, beside)
        if kept:
            found.load(kept)
        return found

    def _demonstrated(self, run: Path | None) -> Demonstrated | None:
        """The recorded episodes in the run's folder; None where none are learnt from."""
        config = self.config
        if not config.data:
            return None
        assert run is not None
        windows = Windows(
            open_data(run / DATA, self.corrected),
            self.network.chunk_length,
            history=history_of(self.network),
            device=config.device,
        )
        return Demonstrated(
            network=self.network,
            windows=windows,
            config=config,
            ranks=self._ranks,
            weight=1.0 if config.is_cloning else config.bc_weight,
        )


def linear(start: float, end: float, fraction: float) -> float:
    """Go from `start` to `end` as `fraction` goes from 0 to 1, and stay there."""
    return start + (end - start) * min(1.0, max(0.0, fraction))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateData:
    """What one update learns from."""

    stretches: tuple[Stretch, ...]
    dropped: int
    """Episodes that the gate refused since the last take."""
    staleness: int
    """Versions that the oldest chunk is behind."""
    mean_staleness: float
    """Versions that a chunk is behind on average."""

    @property
    def episodes(self) -> int:
        """Episodes that ended in it."""
        return _ended(self.stretches)


class StretchQueue:
    """What waits to be learnt from: first in, first out, each parcel once, none too old.

    Two rules keep staleness bounded without waste. The gate drops a parcel whose oldest chunk is
    more than `max_staleness` versions behind, and counts it. So that the gate has nothing to do,
    the throttle stops new episodes while as many are outstanding as the next `max_staleness + 1`
    updates can use, and an update is held while an episode in flight would become too old by it.
    """

    def __init__(self, *, batch: int, max_staleness: int) -> None:
        """An update learns from `batch` episodes."""
        self._batch = batch
        self._max_staleness = max_staleness
        self.outstanding = (max_staleness + 1) * batch
        """Episodes that may be begun and not yet learnt from."""
        self._parcels: deque[Parcel] = deque()
        self._next_chunk: dict[tuple[str, int], int] = {}
        """The chunk that must come next, by attempt, so that nothing comes twice or out of
        order."""
        self._dropped = 0
        self.episodes = 0
        """Episodes that have ended and wait to be learnt from."""

    def put(self, parcel: Parcel) -> None:
        ended = _ended(parcel)
        if self.episodes + ended > self.outstanding + self._batch:
            raise RuntimeError(
                f"{self.episodes + ended} episodes wait to be learnt from; the throttle allows "
                f"{self.outstanding}."
            )
        for stretch in parcel:
            self._count(stretch)
        self._parcels.append(parcel)
        self.episodes += ended

    def is_due(self, version: int, floor: int) -> bool:
        """True if an update of this version may begin. `floor` is the oldest version among the
        episodes in flight: the update waits where they would become too old by it."""
        fresh = (one for one in self._parcels if version - _oldest(one) <= self._max_staleness)
        if sum(_ended(parcel) for parcel in fresh) < self._batch:
            return False
        return version + 1 - floor <= self._max_staleness or not self._max_staleness

    def take(self, version: int) -> UpdateData:
        """Take what the update of this version learns from: a batch, and whatever would be too
        old for the next one."""
        stretches: list[Stretch] = []
        episodes = 0
        kept: deque[Parcel] = deque()
        while self._parcels:
            parcel = self._parcels.popleft()
            ended = _ended(parcel)
            staleness = version - _oldest(parcel)
            if staleness > self._max_staleness:
                self._dropped += ended
                self.episodes -= ended
            elif episodes < self._batch or staleness == self._max_staleness:
                stretches.extend(parcel)
                episodes += ended
                self.episodes -= ended
            else:
                kept.append(parcel)
        self._parcels = kept
        dropped, self._dropped = self._dropped, 0
        ages = [version - int(v) for stretch in stretches for v in stretch.version]
        return UpdateData(
            stretches=tuple(stretches),
            dropped=dropped,
            staleness=max(ages, default=0),
            mean_staleness=sum(ages) / max(1, len(ages)),
        )

    def _count(self, stretch: Stretch) -> None:
        key, first = (stretch.trial.id, stretch.attempt), int(stretch.chunk[0])
        wanted = self._next_chunk.get(key, 0)
        if first != wanted:
            raise RuntimeError(
                f"Chunk {first} of {stretch.trial.id} came where {wanted} was next: no chunk may "
                f"come twice."
            )
        self._next_chunk.pop(key, None)  # what was heard of last is forgotten last
        self._next_chunk[key] = _NEVER if stretch.is_end else int(stretch.chunk[-1]) + 1
        if len(self._next_chunk) > _REMEMBERED:
            del self._next_chunk[next(iter(self._next_chunk))]


def _ended(parcel: Parcel) -> int:
    return sum(stretch.is_end for stretch in parcel)


def _oldest(parcel: Parcel) -> int:
    return min(stretch.oldest for stretch in parcel)
