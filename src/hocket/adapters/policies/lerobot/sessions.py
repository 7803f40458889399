"""LeRobot policies that carry state from call to call: here each attempt has its own, and all share
the weights."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.adapters.policies.lerobot.policy import ACTION, LeRobot, LeRobotConfig
from hocket.core.data import Row
from hocket.errors import ConfigError

if TYPE_CHECKING:
    import torch

_CAMERA = "observation.image"
_SEEDS = 2**63 - 1


class LeRobotSessions(LeRobot):
    """Keeps state for each attempt, and forgets it when the attempt ends or begins again."""

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        super().__init__(folder, settings)
        self._kept: dict[str, Any] = {}

    def begin_session(self, row: Row) -> None:
        """Forget what an attempt of this name left behind."""
        self.end_session(row.session)

    def end_session(self, session: str) -> None:
        """Forget an attempt."""
        with self._lock:
            self._kept.pop(session, None)


class EnsembledACT(LeRobotSessions):
    """ACT with temporal ensembling: asked at every step, with an average for each attempt."""

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        super().__init__(folder, settings)
        self.spec = dataclasses.replace(self.spec, chunk_length=1, replan=1)

    def _combine(self, chunk: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
        """Each attempt's average, moved on by one step: `[B, 1, A]`."""
        import torch
        from lerobot.policies.act.modeling_act import ACTTemporalEnsembler

        config = self._loaded.config
        actions = []
        for i, row in enumerate(rows):
            if row.session not in self._kept:
                self._kept[row.session] = ACTTemporalEnsembler(
                    config.temporal_ensemble_coeff, config.chunk_size
                )
            actions.append(self._kept[row.session].update(chunk[i : i + 1]))
        actions += actions[-1:] * (len(chunk) - len(actions))
        return torch.cat(actions)[:, None]


class PlanningTDMPC(LeRobotSessions):
    """TD-MPC, whose plan of one call is where the next begins. Its planner keeps one plan for a
    whole batch and draws its samples across it, so that rows are planned one after another."""

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        super().__init__(folder, settings)
        others = set(self._loaded.config.image_features) - {_CAMERA}
        if others:
            raise ConfigError(
                f"{folder}: LeRobot's TD-MPC finds its camera by the name {_CAMERA} alone when it "
                f"acts; this policy's is {min(others)}. Rename it in config.json and in the "
                f"processors."
            )

    def _predict(self, inputs: dict[str, Any], rows: list[Row]) -> torch.Tensor:
        import torch

        return torch.cat([self._plan(inputs, i, row) for i, row in enumerate(rows)])

    def _plan(self, inputs: dict[str, Any], i: int, row: Row) -> torch.Tensor:
        """Row i's actions `[1, T, A]`; its plan is kept."""
        from hocket.adapters.policies.lerobot.noise import KeyedNoise

        policy: Any = self._loaded.policy
        seen = {
            key: value[i : i + 1] for key, value in inputs.items() if key.startswith("observation.")
        }
        policy.reset()
        policy._prev_mean = self._kept.get(row.session)
        for key in policy._queues:
            if key != ACTION:
                policy._queues[key] = deque([seen[key]], maxlen=1)
        with KeyedNoise([row.noise_seed], self._device, shared=~row.noise_seed & _SEEDS):
            actions: torch.Tensor = policy.predict_action_chunk(seen).transpose(0, 1)
        self._kept[row.session] = policy._prev_mean
        repeats = int(policy.config.n_action_repeats)
        if repeats > 1:
            return actions[:, :1].repeat(1, repeats, 1)
        return actions[:, : policy.config.n_action_steps]
