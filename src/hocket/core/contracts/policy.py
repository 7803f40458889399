"""What a policy is, and what more it may be able to do.

Whoever brings a model writes a Policy: a spec, `infer` and `close`. hocket's own are
adapters (torch modules, LeRobot, OpenPI servers ...); a policy of yours is given
to `hocket.evaluate` as an object, or named as `package.module:MyPolicy`. It lives in the engine's
process. Every Protocol after the first is an ability: it is used where the policy has its methods.
A policy may have an attribute `files`, paths of what its answers depend on: run.yaml and cards then
have their sha256.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from hocket.core.data import Answer, Batch, Observation, Row
from hocket.core.specs import EnvSpec, PolicySpec

PREFIX, PREFIX_LENGTH, DELAY = "action/prefix", "action/prefix_length", "action/delay"
"""What a policy that continues chunks is told beside its observation; see `Continues`."""
NOISE = "noise"
"""What a policy may be told of the noise that its chunks flow from; see `PolicySpec.noise`."""


class Policy(Protocol):
    """Maps a batch of observations to chunks; row i answers row i. Keeps nothing between calls.

    `infer` is called from several threads, the engine's own among them, at most
    `spec.concurrency` at once. It may read the arrays of the batch until it returns, and writes to
    none; what it returns is the engine's from then on.
    """

    @property
    def spec(self) -> PolicySpec: ...

    def infer(self, batch: Batch) -> Answer:
        """Actions `[B, T, A]` for the `batch.size` rows of a batch."""

    def close(self) -> None:
        """Let go of what is held. Twice is safe."""


@runtime_checkable
class Binds(Protocol):
    """A policy that adapts to the env: it is told of each before any row of it, and may refuse.

    The rows of an env carry the same object (`Row.env`). What a policy prepares for an env is kept
    by that object, never by the task's name: two suites, or two clients of a server, may have tasks
    of one name.
    """

    def bind(self, spec: EnvSpec) -> None: ...


@runtime_checkable
class Sessions(Protocol):
    """A policy that keeps state for each attempt, and is told when one begins and ends."""

    def begin_session(self, row: Row) -> None: ...

    def end_session(self, session: str) -> None:
        """Forget what was kept for the attempt whose rows had this `Row.session`."""


@runtime_checkable
class Continues(Protocol):
    """A policy whose chunks can go on from actions that are committed already, because the world
    does not wait for it.

    Once it was told to, each batch has three arrays more. `action/prefix` `[B, T, A]`: what is left
    of the last chunk, from the action on that is executed first after the observation, as it was
    answered (or as the extra `action/prefix` of that answer, where the policy keeps it in a space
    of its own); zeros fill it. `action/prefix_length` `[B]`: how many actions that is; 0 for an
    attempt's first chunk. `action/delay` `[B]`: of these, how many will have been executed before
    the answer can be used. A batch without them, as a server's other clients send, is answered as
    if nothing had been told.
    """

    @property
    def continuations(self) -> Collection[str]:
        """The methods that it knows: `rtc` (guided by the prefix while it samples), `prefix`
        (trained to begin with one)."""

    def continue_by(self, method: str, settings: Mapping[str, Any]) -> None:
        """Continue chunks by this method from now on; `settings` are those of `--rtc.*`."""


@runtime_checkable
class ReadsDevice(Protocol):
    """A policy that may take a batch's arrays where they live, by DLPack; others get numpy's."""

    @property
    def reads_device_arrays(self) -> bool: ...


@runtime_checkable
class Reconnects(Protocol):
    """A policy that is asked over connections, which may be lost and made again."""

    @property
    def reconnects(self) -> int:
        """How many connections were made again so far."""

    @property
    def flushes(self) -> bool:
        """True if what is left of stale chunks is to be recalled, and asked for again."""

    def is_stale(self, source: str) -> bool:
        """True if the connection is gone over which a chunk of this source came."""


@runtime_checkable
class Sends(Protocol):
    """A policy that lives elsewhere and can show what it sends there."""

    def request(self, observation: Observation, prompt: str) -> Mapping[str, Any]:
        """What is sent for one env's observation."""


@runtime_checkable
class Replicas(Protocol):
    """A policy that can stand on several devices; one `infer` runs at a time on each."""

    def replicas(self, devices: Sequence[str]) -> Sequence[Policy]: ...


@runtime_checkable
class Loads(Protocol):
    """A policy that loads in a process of its own, while this one does something else."""

    def begin_loading(self) -> Callable[[], None]:
        """Begin to load, and wait for nothing: whoever asks for the spec waits. What it gives ends
        the process; then whoever waits is told so."""


@runtime_checkable
class Restarts(Protocol):
    """A policy in a process of its own, which can be ended where it never answers."""

    def restart(self) -> bool:
        """End the process, and with it every call under way; the next call starts another. False
        where none is started any more. Any thread may call this."""
