"""A suite whose envs cannot be what they were asked to be; its error is one of hocket's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hocket.core.specs import TaskInfo
from hocket.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class NoConfig:
    """Nothing to set."""


class Refusing:
    Config: ClassVar = NoConfig

    def __init__(self, argument: str, config: NoConfig) -> None:
        del argument, config

    def tasks(self) -> list[TaskInfo]:
        return [TaskInfo(name="look")]

    def make(self, task: str) -> Any:
        raise ConfigError(f"Task {task!r} has no camera 'left'.")
