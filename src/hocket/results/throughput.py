"""How fast a run went, as reports tell it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """How fast a run went, and what kept it from going faster."""

    env_steps: int = 0
    chunks: int = 0
    """How many chunks lanes executed."""
    batches: int = 0
    policy_busy: float | None = None
    """The share of the time in which the policy inferred, 0 to 1."""
    cores_busy: float | None = None
    """The share of the cores' time that the run's processes used, 0 to 1, that of a policy among
    them included; None where it is not known, as of workers in containers or on other machines."""
    worked_s: float = 0.0
    """Seconds that all lanes together took to execute chunks."""
    wall_s: float = 0.0
    lanes: int = 0
    cores: int = 0
    failed_attempts: int = 0
    unmade_attempts: int = 0
    """Attempts that were given a number and never made: another machine took the trial over."""

    @property
    def env_steps_per_s(self) -> float | None:
        """Control steps that all lanes together executed, per second."""
        return self.env_steps / self.wall_s if self.wall_s > 0 else None

    @property
    def mean_batch(self) -> float | None:
        """How many chunks one inference gave on average."""
        return self.chunks / self.batches if self.batches else None

    def to_json(self) -> dict[str, Any]:
        """The fields and the numbers derived from them."""
        derived = {"env_steps_per_s": self.env_steps_per_s, "mean_batch": self.mean_batch}
        return {**derived, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Throughput:
        """What a report says of it."""
        found, fields = document["throughput"], dataclasses.fields(cls)
        return cls(**{field.name: found[field.name] for field in fields if field.name in found})
