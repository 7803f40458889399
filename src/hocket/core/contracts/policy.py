"""What a policy is, and what more it may be able to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from hocket.core.data import Answer, Array, Batch, EnvSpec, Observation, PolicySpec, Row


class Policy(Protocol):
    """Maps a batch of observations to chunks; row i answers row i. Keeps nothing between calls.

    `infer` is called from threads of the engine's, its own among them, at most `spec.concurrency`
    at once. Arrays of the batch are its own to read until it returns.
    """

    @property
    def spec(self) -> PolicySpec: ...

    def infer(self, batch: Batch) -> Answer: ...

    def close(self) -> None: ...


@runtime_checkable
class Binds(Protocol):
    """A policy that adapts to the env: told what each task's env is before any row of it comes."""

    def bind(self, spec: EnvSpec) -> None: ...


@runtime_checkable
class Sessions(Protocol):
    """A policy that keeps state for each attempt is told when one begins and ends."""

    def begin_session(self, row: Row) -> None: ...

    def end_session(self, session: str) -> None: ...


@runtime_checkable
class Weights(Protocol):
    """A policy that takes new parameters, between two calls of `infer`."""

    def load_weights(self, parameters: Mapping[str, Array], version: int) -> None: ...


@runtime_checkable
class ReadsDevice(Protocol):
    """A policy that takes a batch's arrays where they live, by DLPack; others get numpy's."""

    @property
    def reads_device_arrays(self) -> bool: ...


@runtime_checkable
class Reconnects(Protocol):
    """A policy that is asked over connections, which may be lost and made again."""

    @property
    def reconnects(self) -> int:
        """How often that was."""
        ...

    @property
    def flushes(self) -> bool:
        """Whether what is left of stale chunks is to be recalled, and asked for again."""
        ...

    def is_stale(self, source: str) -> bool:
        """Whether the connection is gone that a chunk of this source came over."""
        ...


@runtime_checkable
class Sends(Protocol):
    """A policy that lives elsewhere, and what is sent there for one env's observation."""

    def request(self, observation: Observation, prompt: str) -> Mapping[str, Any]: ...


@runtime_checkable
class Replicas(Protocol):
    """A policy that can stand on several devices; one `infer` runs at a time on each."""

    def replicas(self, devices: Sequence[str]) -> Sequence[Policy]: ...
