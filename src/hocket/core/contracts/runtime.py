"""What a runtime is: it starts workers somewhere, and ends them.

Whoever wants workers elsewhere (in containers, on other machines) writes a Runtime; hocket's own
are `inline` (in the engine's process), `local` (processes of this machine), containers, and those
of other machines. It lives in the engine's process, serves one fleet, and gives a Link to each
worker. What the worker at the other end does is hocket's own: a runtime starts that and carries the
messages of `hocket.core.wire`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

from hocket.core.contracts.link import Link
from hocket.core.data import Ref


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One disturbance, and how strong it is."""

    name: str
    amount: float = 0.0
    prompts: Mapping[str, str] | None = None
    """New prompts, by the old ones or by task."""

    def to_plain(self) -> dict[str, Any]:
        prompts = None if self.prompts is None else dict(self.prompts)
        return {"name": self.name, "amount": self.amount, "prompts": prompts}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """All that a worker must know to be built, anywhere, without pickling."""

    suites: Mapping[str, Ref]
    """The suites that it may be asked for, by the name that trials carry."""
    lanes: int = 1
    reads: tuple[str, ...] | None = None
    """Observation keys to send; None sends all."""
    cameras: tuple[str, ...] | None = None
    """Image keys to render; None renders all."""
    history: int = 1
    """Observations of how many consecutive control steps are sent, oldest first."""
    slots: int = 1
    """Observations of a lane that are kept at once: 2 where a lane goes on while the policy reads
    what it saw. The observation for chunk k lies in slot k modulo `slots`."""
    sinks: tuple[Ref, ...] = ()
    folder: str | None = None
    """The run folder, where sinks write."""
    python: str | None = None
    """Another interpreter; None is this one."""
    renders: bool = False
    """It renders ended attempts from their states, in a single env even of a batched suite."""
    transport: str = "auto"
    """`shm`, `inline` or `auto` (shared memory where it can be had)."""
    perturb: tuple[Factor, ...] = ()
    """What is disturbed of every observation and action."""
    tells: bool = False
    """It tells the numbers in `info` of every step (Told)."""
    sends_files: bool = False
    """It does not share the parent's disk: what sinks seal goes over the stream, in pieces."""

    def to_plain(self) -> dict[str, Any]:
        """The spec as plain lists and dicts, as it travels in the Open message."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["suites"] = {name: ref.to_plain() for name, ref in self.suites.items()}
        plain["perturb"] = [factor.to_plain() for factor in self.perturb]
        plain["sinks"] = [ref.to_plain() for ref in self.sinks]
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> WorkerSpec:
        values = dict(plain)
        values["suites"] = {name: Ref(**ref) for name, ref in values["suites"].items()}
        values["perturb"] = tuple(Factor(**one) for one in values["perturb"])
        values["sinks"] = tuple(Ref(**ref) for ref in values["sinks"])
        for name in ("reads", "cameras"):
            values[name] = None if values[name] is None else tuple(values[name])
        return cls(**values)


class Runtime(Protocol):
    """Starts workers somewhere, and ends them."""

    def start(self, spec: WorkerSpec) -> Link:
        """Ask for a worker. Does not wait for it: the link's first message is Hello, or the link
        fails. Raises WorkerFailed where no worker can be had."""

    def close(self) -> None:
        """End every worker that is left. Twice is safe."""


@runtime_checkable
class Isolates(Protocol):
    """A runtime that can give every episode a worker of its own."""

    @property
    def isolates(self) -> bool:
        """True if it was told to: each worker then ends with its first episode."""


@runtime_checkable
class Prepares(Protocol):
    """A runtime that makes something once for all workers, such as an image."""

    @property
    def is_preparing(self) -> bool:
        """True if it does so now; no worker is blamed for being late meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usability:
    """What a runtime needs of this machine, and whether that is there."""

    is_usable: bool
    detail: str = ""
    advice: str = ""
    """A command or a sentence that helps, where it cannot be used."""


@runtime_checkable
class Examined(Protocol):
    """A runtime whose class can say whether it works here, without starting anything."""

    @classmethod
    def examine(cls) -> Usability: ...
