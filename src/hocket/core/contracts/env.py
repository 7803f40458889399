"""What a suite is, and what its envs may be able to do beyond gymnasium's contract."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hocket.core.data import Array, TaskInfo

if TYPE_CHECKING:
    import gymnasium


class Suite(Protocol):
    """What a name like `metaworld:mt10` means. Importing and `tasks` need no simulator, unless the
    suite's adapter says `tasks_need_simulator = True`: then a worker is asked."""

    def tasks(self) -> Sequence[TaskInfo]: ...

    def make(self, task: str) -> gymnasium.Env[Any, Any]: ...


@runtime_checkable
class DeferredObservation(Protocol):
    """An env whose `step` is `advance` and then `observe`; `observe` changes nothing."""

    def advance(self, action: Array) -> tuple[float, bool, bool, dict[str, Any]]: ...

    def observe(self) -> Any: ...


@runtime_checkable
class Snapshot(Protocol):
    """An env whose whole simulator state is one float64 vector that can be taken and given back."""

    def get_state(self) -> Array: ...

    def set_state(self, state: Array) -> None: ...


@runtime_checkable
class SelectsCameras(Protocol):
    """An env that renders only the cameras asked for. `camera_keys` lists all it has, as keys of
    its flattened observation; `use_cameras` holds from the next `reset` or `observe` on."""

    @property
    def camera_keys(self) -> tuple[str, ...]: ...

    def use_cameras(self, keys: Collection[str]) -> None: ...
