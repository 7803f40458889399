"""Everything that an evaluation is, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hocket.engine.chunk_rules import make_rule
from hocket.errors import ConfigError
from hocket.records.video.selection import VideoSelection
from hocket.runs.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig(Subject):
    """Everything that an evaluation is; saved with the run, and enough to run it again."""

    episodes: int = 10
    """Of each task."""
    seed: int = 0
    """Of each task's first episode; the next ones count up."""
    lanes: int | Literal["auto"] = "auto"
    replan: int | None = None
    ensemble: float | None = None
    exact: bool = False
    max_steps: int | None = None
    retries: int = 2
    step_timeout_s: float = 60.0
    worker_memory: int | None = None
    recycle_after: int | None = None
    until: Literal["done", "decided"] = "done"
    """`decided` stops when the comparison with `against` is decided; `episodes` is then the cap."""
    against: str | None = None
    """The run folder to compare with."""
    alpha: float = 0.05
    """How often a decision may be wrong where there is no difference."""
    sequential: Literal["paired", "step"] = "paired"
    """The test that decides: on pairs, or STEP's, which ignores the pairing."""
    record: Literal["none", "numbers", "full"] = "numbers"
    """What is kept of each step in the run folder; `full` adds every camera's picture."""
    video: str = "first:1"
    """Which episodes get a video: `none`, `first:N` of each task, `failures` or `all`."""
    video_overlay: bool = False

    def __post_init__(self) -> None:
        Subject.__post_init__(self)
        for name, low in (("episodes", 1), ("retries", 0), ("max_steps", 1), ("recycle_after", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} is {value}; it must be at least {low}.")
        if self.lanes != "auto" and self.lanes < 1:
            raise ConfigError(f"lanes is {self.lanes}; it must be at least 1, or 'auto'.")
        if self.step_timeout_s <= 0:
            raise ConfigError(f"step_timeout_s is {self.step_timeout_s}; it must be above 0.")
        if (self.until == "decided") != (self.against is not None):
            raise ConfigError("until='decided' and against=RUN go together: give both, or none.")
        if self.sequential not in ("paired", "step"):
            raise ConfigError(f"sequential is {self.sequential!r}; it is 'paired' or 'step'.")
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha is {self.alpha}; it must lie between 0 and 1.")
        VideoSelection.parse(self.video)
        make_rule(self.replan, self.ensemble)
