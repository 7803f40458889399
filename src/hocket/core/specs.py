"""What envs and policies say of themselves. All are frozen; arrays in them are not written to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from numbers import Integral
from typing import Any, Literal

import numpy as np

from hocket.core.data import Array, Exactness, SuccessRule
from hocket.errors import ConfigError, EnvError

_LEAST = {
    "chunk_length": 0,
    "action_size": 1,
    "history": 1,
    "max_batch": 1,
    "concurrency": 1,
    "replan": 1,
}
"""The lowest values of a PolicySpec's whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """Shape and dtype of one array; -1 in a shape means any size."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """What a suite says about one of its tasks."""

    name: str
    prompt: str = ""
    max_steps: int | None = None
    """hocket truncates the episode after this many steps; None leaves that to the env."""
    control_rate: float | None = None
    """Control steps per second of simulated time."""
    success_rule: SuccessRule = "first"
    """Which success counts. `first`: the first, and it ends the episode; `any`: one at any step;
    `final`: only one at the last step."""
    score_key: str = ""
    """Where in `info` the env tells a score, a number from 0 to 1; empty where it has none."""
    success_at: float | None = None
    """The least score that is a success; None where a score says nothing of success."""
    starts: int | None = None
    """How many starts there are, of which each is planned once: a trial's seed counts them from 0.
    None where any seed is one."""

    def __post_init__(self) -> None:
        least = self.success_at
        if least is not None and not (self.score_key and 0 < least <= 1):
            raise EnvError(
                f"success_at of {self.name!r} is {least!r}: it is the least score that is a "
                f"success, above 0 and at most 1, and stands beside a score_key."
            )

    @property
    def scoring(self) -> dict[str, Any]:
        """How its score is read, for run.yaml and cards; empty where it has none."""
        if not self.score_key:
            return {}
        return {"score_key": self.score_key, "success_at": self.success_at}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActionSpec:
    """How an env is driven: `size` numbers a step, laid into the env's own action space."""

    size: int
    kind: Literal["box", "discrete"]
    shape: tuple[int, ...]
    dtype: str
    low: Array
    high: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnvSpec:
    """What an env turned out to be, told by the worker after its first reset.

    Two specs are equal only where they are one object, so a spec may be a key.
    """

    task: TaskInfo
    action: ActionSpec
    observations: Mapping[str, ArraySpec]
    cameras: tuple[str, ...]
    """Keys of `observations` that are images."""
    abilities: tuple[str, ...]
    """Some of `deferred`, `snapshot`, `cameras`, `hold`, `batched` and `masked`."""
    notes: tuple[str, ...] = ()
    """What the user should know (a slow renderer, a changed image); shown once."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What else numbers depend on, as the env tells: its renderer, the digest of its model."""

    def to_plain(self) -> dict[str, Any]:
        """The spec as plain lists and dicts, as it travels in messages."""
        plain = asdict(self)
        for bound in ("low", "high"):
            plain["action"][bound] = np.asarray(plain["action"][bound], "<f8").tolist()
        plain["observations"] = {key: asdict(each) for key, each in self.observations.items()}
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> EnvSpec:
        action = dict(plain["action"])
        action["shape"] = tuple(action["shape"])
        for bound in ("low", "high"):
            action[bound] = np.array(action[bound], np.float64)
        return cls(
            task=TaskInfo(**plain["task"]),
            action=ActionSpec(**action),
            observations={
                key: ArraySpec(shape=tuple(value["shape"]), dtype=value["dtype"])
                for key, value in plain["observations"].items()
            },
            cameras=tuple(plain["cameras"]),
            abilities=tuple(plain["abilities"]),
            notes=tuple(plain["notes"]),
            facts={str(key): str(value) for key, value in plain.get("facts", {}).items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """What a policy reads and gives."""

    chunk_length: int
    """T: actions in a chunk; 0 leaves it to the answer (a server that does not say)."""
    action_size: int | None = None
    """A; None adapts to the env."""
    inputs: Mapping[str, ArraySpec] | None = None
    """The observation keys that it reads; None means every key that the env gives."""
    cameras: tuple[str, ...] | None = None
    """Image keys to render for it; None means all the env has, () none."""
    history: int = 1
    """Observations of how many consecutive control steps it reads, oldest first."""
    control_rate: float | None = None
    """Control steps per second of simulated time that it was made for."""
    max_batch: int = 64
    batch_sizes: tuple[int, ...] = ()
    """The sizes that it pads its batches to, smallest first; () where any size is as good."""
    concurrency: int = 1
    """How many `infer` may run at once."""
    batch_invariant: bool = False
    """A row's answer does not depend on the rest of its batch, to the bit."""
    keyed_noise: bool = True
    """Its noise, if any, comes from `Row.noise_seed` alone."""
    replan: int | None = None
    """How many actions of a chunk are executed where the user does not say; None means all."""
    noise: tuple[int, ...] = ()
    """The shape of the noise that a row's chunk flows from, where batches may bring it as the array
    `noise` `[B, T, F]`; () where they may not. Rows of a batch without are keyed as ever."""
    origin: Mapping[str, str] = field(default_factory=dict)
    """What its answers follow from, where it was fetched: repository, revision, and the sha256 of
    each file."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None and name in ("action_size", "replan"):
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise ConfigError(
                    f"{name} of a PolicySpec is {value!r}; it must be a whole number, at least "
                    f"{least}."
                )
        specs = {} if self.inputs is None else self.inputs
        if not isinstance(specs, Mapping) or not all(
            isinstance(each, ArraySpec) for each in specs.values()
        ):
            raise ConfigError(
                f"inputs of a PolicySpec are {self.inputs!r}; they must be ArraySpecs by key."
            )
        if not isinstance(self.cameras, (tuple, list, type(None))):
            raise ConfigError(
                f"cameras of a PolicySpec are {self.cameras!r}; they must be a tuple."
            )
        rate: object = self.control_rate
        if rate is not None and not (isinstance(rate, (int, float)) and rate > 0):
            raise ConfigError(f"control_rate of a PolicySpec is {rate!r}; it must be above 0.")

    def exactness(self, *, alone: bool) -> Exactness:
        """What "same trial, same result" means with this policy. `alone`: every row is inferred in
        a batch of its own, so that there is nothing else which its bits could depend on."""
        if not self.keyed_noise:
            return "environment"
        return "bitwise" if self.batch_invariant or alone else "inputs"
