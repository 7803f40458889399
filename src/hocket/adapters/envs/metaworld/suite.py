"""The suite `metaworld:<task>|mt10|mt50`. Importing it needs no simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from hocket.adapters.envs.gl import backends
from hocket.adapters.envs.metaworld.tasks import CAMERAS, MT10, PROMPTS
from hocket.core.data import TaskInfo
from hocket.core.plugins import did_you_mean
from hocket.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from hocket.adapters.envs.metaworld.env import MetaWorldEnv

CONTROL_RATE = 80.0
"""Five physics steps of 2.5 ms to a control step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaWorldConfig:
    """How MetaWorld's tasks are seen."""

    cameras: tuple[str, ...] = ("corner2",)
    """Cameras to render where the policy wants images: topview, corner, corner2, corner3, corner4,
    behindGripper, gripperPOV. The first is `observation/image`, gripperPOV is
    `observation/wrist_image`, any other is `observation/<camera>_image`."""
    size: int = 224
    """Height and width of images, in pixels."""
    render: Literal["full", "fast"] = "full"
    """`fast` leaves out shadows, multisampling and reflections: about six times faster on a CPU,
    but the images differ from MetaWorld's own."""
    hide_goal: bool = False
    """Put zeros where the state has the goal's position."""
    max_steps: int = 500
    """Steps after which an episode is truncated."""

    def __post_init__(self) -> None:
        for camera in self.cameras:
            if camera not in CAMERAS:
                raise ConfigError(
                    f"MetaWorld has no camera {camera!r}.{did_you_mean(camera, CAMERAS)} It has: "
                    f"{', '.join(CAMERAS)}."
                )
        if len(set(self.cameras)) < len(self.cameras):
            raise ConfigError(f"A camera is named twice in {self.cameras}.")
        if self.size < 1 or self.max_steps < 1:
            raise ConfigError(
                f"size and max_steps must be at least 1, not {self.size}, {self.max_steps}."
            )
        if self.render not in ("full", "fast"):
            raise ConfigError(f"render is 'full' or 'fast', not {self.render!r}.")


class MetaWorld:
    """MetaWorld's tasks: one by name (`push-v3` or `push`), the ten of MT10, or all fifty."""

    Config: ClassVar = MetaWorldConfig
    preload: ClassVar[tuple[str, ...]] = ("hocket.adapters.envs.metaworld.env",)
    """Fork-safe: loads MuJoCo and MetaWorld without OpenGL, which each worker chooses later."""

    def __init__(self, argument: str, config: MetaWorldConfig) -> None:
        self._tasks = _task_names(argument)
        self._config = config

    @staticmethod
    def prepare_worker(index: int) -> None:
        """Called first in each worker: workers take turns over the EGL devices."""
        backends.set_worker(index)

    def tasks(self) -> tuple[TaskInfo, ...]:
        return tuple(
            TaskInfo(
                name=name,
                prompt=PROMPTS[name],
                max_steps=self._config.max_steps,
                control_rate=CONTROL_RATE,
                success_rule="first",
            )
            for name in self._tasks
        )

    def make(self, task: str) -> MetaWorldEnv:
        if task not in self._tasks:
            raise UnknownNameError(
                f"This suite has no task {task!r}.{did_you_mean(task, self._tasks)}"
            )
        from hocket.adapters.envs.metaworld.env import MetaWorldEnv

        return MetaWorldEnv(task, self._config)


def _task_names(argument: str) -> tuple[str, ...]:
    name = argument.strip().lower()
    if name == "mt10":
        return MT10
    if name == "mt50":
        return tuple(PROMPTS)
    full = name if name.endswith("-v3") else f"{name}-v3"
    if full in PROMPTS:
        return (full,)
    if not name:
        raise UnknownNameError("Say which task: metaworld:mt10, metaworld:mt50, metaworld:push ...")
    known = ["mt10", "mt50", *PROMPTS, *(task.removesuffix("-v3") for task in PROMPTS)]
    raise UnknownNameError(
        f"MetaWorld has no task {argument!r}.{did_you_mean(name, known)} Known: mt10, mt50, "
        f"{', '.join(PROMPTS)}."
    )
