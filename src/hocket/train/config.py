"""Everything that a training run is; saved with it, and enough to run it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from hocket.errors import ConfigError
from hocket.runs.subject import Subject

_AT_LEAST = {
    "steps": 1,
    "batch": 1,
    "group": 2,
    "epochs": 1,
    "minibatches": 1,
    "max_staleness": 0,
    "segment_chunks": 0,
    "eval_every": 0,
    "eval_episodes": 1,
    "checkpoint_every": 0,
    "retries": 0,
    "threads": 1,
    "value_only": 0,
}
_SHARES = ("gamma", "lam", "clip", "clip_high")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(Subject):
    """A training run. Flags have the same names and say what each means."""

    noun: ClassVar[str] = "Training"

    algo: Literal["ppo", "grpo"] = "ppo"
    mode: Literal["sync", "async"] = "sync"
    steps: int = 200_000
    minutes: float | None = None
    stop_at: float | None = None
    seed: int = 0
    lanes: int | Literal["auto"] = "auto"
    batch: int = 32
    replan: int | None = None
    reward: Literal["success", "env"] = "success"
    max_steps: int | None = None

    lr: float = 3e-4
    lr_end: float | None = None
    epochs: int = 6
    minibatches: int = 4
    gamma: float = 0.995
    lam: float = 0.99
    clip: float = 0.2
    clip_high: float | None = None
    clip_value: float | None = None
    value_weight: float = 0.5
    value_only: int = 1
    entropy: float = 0.0
    target_kl: float | None = 0.2
    max_grad_norm: float = 1.0
    ratio: Literal["chunk", "action"] | None = None
    std: float | None = None
    residual: bool = False
    residual_scale: float = 0.2

    group: int = 8
    pin_version: bool = False
    kl_weight: float = 0.0

    max_staleness: int = 2
    correction: Literal["none", "decoupled", "interpolated", "tis"] | None = None
    truncate: float = 2.0
    segment_chunks: int = 0

    eval_every: int = 20_000
    eval_episodes: int = 20
    eval_seed: int = 0
    checkpoint_every: int = 20_000
    tracker: Literal["none", "wandb", "trackio"] = "none"
    weights: str = ""
    device: str = "cpu"
    collect_device: str = "cpu"
    threads: int = 1
    retries: int = 2
    step_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        Subject.__post_init__(self)
        for name, low in _AT_LEAST.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {low}.")
        for name in _SHARES:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(f"{name} is {value}; it must be between 0 and 1.")
        if self.lanes != "auto" and self.lanes < 1:
            raise ConfigError(f"lanes is {self.lanes}; it must be at least 1, or 'auto'.")
        if self.policy_python is not None and not self.residual:
            raise ConfigError(
                "A network in training runs in this interpreter. --policy-python is for "
                "--residual, which trains a correction and leaves the policy where it is."
            )
        if self.policy_devices:
            raise ConfigError(
                "policy_devices are for evaluation; a network in training has device and "
                "collect_device."
            )
        if self.mode == "async" and self.max_staleness < 1:
            raise ConfigError(
                "max_staleness is 0: collection would wait for every update. Use --mode sync, or "
                "allow at least 1."
            )
        if self.algo == "grpo" and self.batch % self.group:
            raise ConfigError(
                f"A batch of {self.batch} episodes does not hold whole groups of {self.group}."
            )
        if self.algo == "grpo" and self.segment_chunks:
            raise ConfigError("GRPO learns from whole episodes; leave out --segment-chunks.")

    @property
    def lane_count(self) -> int:
        """Lanes of a run whose `auto` has been counted out."""
        assert self.lanes != "auto"
        return self.lanes

    @property
    def staleness(self) -> int:
        """Versions that data may be behind: none in synchronous mode."""
        return self.max_staleness if self.mode == "async" else 0

    @property
    def corrected_by(self) -> Literal["none", "decoupled", "interpolated", "tis"]:
        """The correction chosen, or what the mode needs."""
        if self.correction is not None:
            return self.correction
        return "decoupled" if self.mode == "async" else "none"
