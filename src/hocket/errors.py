"""The errors that hocket raises on purpose; a part that needs more has its own, below one of these.

HocketError
├── UsageError              what the user asked for cannot be done (the command line exits with 2)
│   ├── UnknownNameError    no such env, policy, task, runtime or recorder; suggests the nearest
│   │   └── UnimportableError   a module or file that was named cannot be imported
│   ├── MissingExtraError   an optional dependency is not installed; says the pip command
│   ├── MissingRoomError    a part of hocket was taken out
│   └── ConfigError         a key or value of a configuration is wrong
├── SpecMismatchError       env and policy do not fit each other; names the key
├── EnvError                an env broke its contract
│   ├── SecondResetError    an env could not be reset twice in a row
│   ├── OutcomeError        what an env tells is no outcome; it ends the run
│   ├── ObservationError    a key is missing, or changed its shape or dtype
│   ├── SuspensionError     rows of a batched simulator cannot wait without moving
│   └── ActionSpaceError    the action space cannot be driven
├── PolicyError             a policy broke its contract
│   ├── ChunkShapeError     wrong [B, T, A]
│   ├── ChunkValueError     NaN, infinity or a dtype that is no number
│   ├── SessionLostError    the state that a policy kept for an attempt is gone
│   │   └── StateMovedError     a batch raised, and nobody knows for which of its rows
│   └── PolicyUnavailableError  nobody answers
│       └── PolicyHungError     the policy never returned
├── WorkerFailed            a worker crashed, hung, was killed, or used too much memory
├── WireError               a message between engine and worker cannot be read, or is too long
└── RunFolderError          a run folder cannot be used
    └── DamagedSegmentError rows of a table were cut or changed since they were written
"""

from __future__ import annotations


class HocketError(Exception):
    """Root of all errors that hocket raises on purpose."""


class UsageError(HocketError):
    """What the user asked for cannot be done."""


class UnknownNameError(UsageError):
    """No such env, policy, task, runtime or recorder."""


class UnimportableError(UnknownNameError):
    """A module or a file that was named is there, and cannot be imported."""


class MissingExtraError(UsageError):
    """An optional dependency is not installed."""


class MissingRoomError(UsageError):
    """A part of hocket was taken out."""


class ConfigError(UsageError):
    """A key or a value of a configuration is wrong."""


class SpecMismatchError(HocketError):
    """Env and policy do not fit each other."""


class EnvError(HocketError):
    """An env broke its contract."""


class SecondResetError(EnvError):
    """An env could not be reset twice in a row, which is asked only to look at its starts."""


class OutcomeError(EnvError):
    """What an env tells in `info` is neither an outcome nor a score. Every trial would say so, and
    none of them may count: it ends the run."""


class ObservationError(EnvError):
    """An observation lacks a key, or a key changed its shape or dtype."""


class RecorderError(HocketError):
    """What records an episode raised something."""


class SuspensionError(EnvError):
    """Rows of a batched simulator cannot wait without moving."""


class ActionSpaceError(EnvError):
    """An action space cannot be driven by numbers."""


class PolicyError(HocketError):
    """A policy broke its contract."""


class ChunkShapeError(PolicyError):
    """A policy answered with the wrong shape."""


class ChunkValueError(PolicyError):
    """A policy answered with values that are not finite numbers."""


class SessionLostError(PolicyError):
    """The state that a policy kept for an attempt is gone; the attempt runs again from reset."""


class StateMovedError(SessionLostError):
    """A batch raised, nobody knows for which of its rows, and what the policy keeps for them may
    have moved on: their attempts run again from reset, and no retry is spent."""


class PolicyUnavailableError(PolicyError):
    """Nobody answers; to ask again with fewer rows would not help."""


class PolicyHungError(PolicyUnavailableError):
    """A policy never returned from `infer`; a run without another copy of it cannot go on."""


class WorkerFailed(HocketError):
    """A worker crashed, hung, was killed, or used too much memory."""


class WireError(HocketError):
    """A message between engine and worker cannot be read, or is too long."""


class RunFolderError(HocketError):
    """A run folder cannot be used."""


class DamagedSegmentError(RunFolderError):
    """A file with rows of a table was cut or changed since it was written."""


def from_name(kind: str, message: str) -> HocketError | None:
    """The error that a worker reported by the name of its class; None where it is not hocket's."""
    found = globals().get(kind)
    if isinstance(found, type) and issubclass(found, HocketError):
        return found(message)
    return None
