"""`metaworld-expert`: MetaWorld's scripted experts as a policy of chunks of one action."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hocket.core.data import Actions, ArraySpec, Batch, EnvSpec, PolicySpec
from hocket.core.plugins import did_you_mean
from hocket.errors import ConfigError, PolicyError, SpecMismatchError

STATE_KEY = "observation/state"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertConfig:
    """The experts have no settings."""


class MetaWorldExpert:
    """Answers with what the task's expert would do now. Experts see the goal: they fail where it
    is hidden."""

    Config: ClassVar = ExpertConfig

    def __init__(self, argument: str, config: ExpertConfig) -> None:
        if argument:
            raise ConfigError(f"'metaworld-expert' takes nothing after its name, not {argument!r}.")
        from metaworld.policies import ENV_POLICY_MAP

        # Experts warn that they ask for more than the env allows; clipping is what they expect.
        warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high")
        self._experts: dict[str, Any] = {name: kind() for name, kind in ENV_POLICY_MAP.items()}

    @property
    def spec(self) -> PolicySpec:
        return PolicySpec(
            chunk_length=1,
            action_size=4,
            inputs={STATE_KEY: ArraySpec(shape=(39,), dtype="float64")},
            cameras=(),
            control_rate=80.0,
            batch_invariant=True,
        )

    def bind(self, spec: EnvSpec) -> None:
        """Refuse an env that no expert was written for."""
        if spec.task.name not in self._experts:
            near = did_you_mean(spec.task.name, self._experts)
            raise SpecMismatchError(
                f"MetaWorld has no expert for the task {spec.task.name!r}.{near}"
            )

    def infer(self, batch: Batch) -> Actions:
        states = np.asarray(batch.arrays[STATE_KEY], np.float64)
        values = np.zeros((batch.size, 1, 4), np.float32)
        for i, row in enumerate(batch.rows):
            expert = self._experts.get(row.trial.task)
            if expert is None:
                raise PolicyError(f"MetaWorld has no expert for the task {row.trial.task!r}.")
            values[i, 0] = np.clip(expert.get_action(states[i]), -1, 1)
        return Actions(values)

    def close(self) -> None:
        """Nothing is held."""
