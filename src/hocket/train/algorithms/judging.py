"""Reward models: a network's critic learns to tell from what is seen whether an episode succeeded.

What was seen at the end of successful episodes is told from all else that recorded episodes saw,
failures included. Of every four episodes one is held out: half of those calibrate the answer, and
the other half say how good it is.

    <run>/judge.json   scale, shift, and what was measured: n, accuracy and its interval, brier
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hocket.core.data import Array
from hocket.errors import ConfigError, RunFolderError, UsageError
from hocket.results import stats
from hocket.system.durable import drafted
from hocket.train.algorithms.cloning import Demonstrated
from hocket.train.algorithms.gradients import clipped
from hocket.train.algorithms.ranks import Measures
from hocket.train.algorithms.stretches import Stretch
from hocket.train.data.store import Recorded
from hocket.train.learner import checkpoint
from hocket.train.networks.building import Description, load_weights
from hocket.train.networks.contract import PROMPT, TASK, Observations, trainable_parameters
from hocket.train.reward_terms import JUDGE

_NEAR = 3
"""Steps before a success that are neither one nor the other."""
_HELD_OUT = 4
"""Of so many episodes one is held out."""
_ROWS_AT_A_TIME = 1024
SHOWS, SHOWS_NOT, LEFT_OUT = 1.0, 0.0, -1.0


def labels(one: Recorded) -> Array:
    """Which of an episode's observations show success, `[N]`."""
    found = np.full(len(one.actions), SHOWS_NOT)
    if one.success:
        found[-1 - _NEAR :] = LEFT_OUT
        found[-1] = SHOWS
    return found


@dataclass(eq=False)
class Judging:
    """Fits a network's critic to recorded outcomes."""

    optimizer: torch.optim.Optimizer
    recorded: Demonstrated
    steps: int
    """Optimizer steps of an update."""

    def __post_init__(self) -> None:
        data = self.recorded.windows.data
        episode = np.unique(data.first, return_inverse=True)[1]
        shows = data.rewards == SHOWS
        number = np.zeros(len(data), np.int64)
        ends = np.flatnonzero(data.last == np.arange(len(data)))
        for is_success in (True, False):  # each kind in turn, so that both are held out
            mine = ends[shows[ends] == is_success]
            number[mine] = np.arange(len(mine)) % (2 * _HELD_OUT)
        number = number[ends][episode]
        self._trained = [
            np.flatnonzero((data.rewards == label) & (number % _HELD_OUT != 0))
            for label in (SHOWS, SHOWS_NOT)
        ]
        self._held = [ends[number[ends] == part] for part in (0, _HELD_OUT)]
        kinds = [set(shows[rows].tolist()) for rows in self._held]
        if not all(map(len, self._trained)) or any(len(kind) < 2 for kind in kinds):
            raise UsageError(
                f"{shows[ends].sum()} of {len(ends)} recorded episodes succeeded: a reward model "
                f"needs at least {_HELD_OUT + 1} of each kind. Record failures too, with `hocket "
                f"eval` or `hocket collect --failures`."
            )

    def update(self, rng: torch.Generator) -> dict[str, float]:
        recorded, config = self.recorded, self.recorded.config
        parameters = list(trainable_parameters(recorded.network).values())
        measures = Measures(recorded.ranks)
        size = config.minibatch_of(recorded.network.chunk_length) // 2
        label = torch.cat((torch.ones(size), torch.zeros(size))).to(parameters[0].device)
        for _ in range(self.steps):
            drawn = [
                rows[torch.randint(len(rows), (size,), generator=rng).numpy()]
                for rows in self._trained
            ]
            value = recorded.network.value(recorded.windows.seen(np.concatenate(drawn)))
            loss = torch.nn.functional.binary_cross_entropy_with_logits(value, label)
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            whole, norm = clipped(found, parameters, recorded.ranks, config.max_grad_norm)
            for parameter, one in zip(parameters, whole, strict=True):
                parameter.grad = one
            self.optimizer.step()
            measures.note(judging_loss=loss, judging_grad_norm=norm)
        return measures.result()

    def measure(self) -> dict[str, float]:
        """Calibrate on one half of what was held out, and measure on the other."""
        data = self.recorded.windows.data
        truth = [torch.from_numpy(data.rewards[rows] == SHOWS).float() for rows in self._held]
        values = [self._values(rows) for rows in self._held]
        scale, shift = torch.ones((), requires_grad=True), torch.zeros((), requires_grad=True)
        newton = torch.optim.LBFGS([scale, shift], max_iter=50)

        def loss() -> Tensor:
            newton.zero_grad()
            off = torch.nn.functional.binary_cross_entropy_with_logits(
                scale * values[0] + shift, truth[0]
            )
            # Where both kinds are told apart entirely, no scale would be the best.
            off = off + 0.01 * (scale**2 + shift**2)
            off.backward()
            return off

        newton.step(loss)
        chance = torch.sigmoid(scale * values[1] + shift).detach()
        right = int(((chance > 0.5) == (truth[1] > 0.5)).sum())
        interval = stats.wilson(right, len(chance))
        assert interval is not None  # some were held out
        return {
            "scale": float(scale.detach()),
            "shift": float(shift.detach()),
            "n": float(len(chance)),
            "accuracy": right / len(chance),
            "accuracy_low": interval.low,
            "accuracy_high": interval.high,
            "brier": float(((chance - truth[1]) ** 2).mean()),
        }

    def _values(self, rows: Array) -> Tensor:
        network, windows = self.recorded.network, self.recorded.windows
        with torch.no_grad():
            parts = [
                network.value(windows.seen(rows[i : i + _ROWS_AT_A_TIME])).float().cpu()
                for i in range(0, len(rows), _ROWS_AT_A_TIME)
            ]
        return torch.cat(parts)


class Judge:
    """A reward: how likely an episode succeeded, of what was seen at its end."""

    def __init__(self, run: Path, named: str = "") -> None:
        """`named` is the network's class where that is the user's own."""
        folder = checkpoint.latest(run)
        self._description = Description.from_plain(
            checkpoint.read_table(folder / checkpoint.POLICY)
        )
        try:
            self._measured: dict[str, Any] = json.loads((run / JUDGE).read_text())
        except (OSError, ValueError) as exc:
            raise RunFolderError(f"{run / JUDGE} cannot be read: {exc}") from exc
        self._network = self._description.build(named)
        load_weights(self._network, folder / checkpoint.WEIGHTS)
        self._network.eval()

    def __call__(self, stretch: Stretch) -> float:
        tasks, seen = self._description.shapes.tasks, stretch.final or {}
        missing = [key for key in self._network.inputs if key not in seen]
        if stretch.trial.task not in tasks or missing:
            what = f"lacks {missing[0]!r}" if missing else f"is not of {', '.join(tasks)}"
            raise ConfigError(f"What was seen at the end {what}, which the reward model reads.")
        arrays = {key: torch.from_numpy(seen[key][None]) for key in self._network.inputs}
        arrays |= {TASK: torch.tensor([tasks.index(stretch.trial.task)])}
        arrays |= {PROMPT: torch.zeros(1, dtype=torch.int64)}
        with torch.no_grad():
            value = self._network.value(Observations(arrays, (stretch.prompt,)))
        scale, shift = self._measured["scale"], self._measured["shift"]
        return float(torch.sigmoid(scale * value + shift))


def save_judge(run: Path, measured: dict[str, float]) -> None:
    """Keep how a reward model answers, and how good it is."""
    with drafted(run / JUDGE) as draft:
        draft.write_text(json.dumps(measured, indent=1))
