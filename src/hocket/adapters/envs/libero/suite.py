"""The suite `libero:spatial|object|goal|10|90|<task>`. Importing it needs no simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from hocket.adapters.envs.gl import backends
from hocket.adapters.envs.libero.data import find_data
from hocket.adapters.envs.libero.tasks import STEP_LIMITS, SUITES, language, suite_of
from hocket.core.data import TaskInfo
from hocket.core.plugins import did_you_mean
from hocket.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from hocket.adapters.envs.libero.env import LiberoEnv

CONTROL_RATE = 20.0
CAMERAS = ("agentview", "robot0_eye_in_hand")
_SHORT = {suite.removeprefix("libero_"): suite for suite in SUITES}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiberoConfig:
    """How LIBERO's tasks are started and seen."""

    size: int = 256
    """Height and width of images, in pixels."""
    mirrored: bool = True
    """LIBERO's images turned by half a turn, as OpenPI, OpenVLA and LeRobot train on them: upright,
    but left and right changed over. False shows what the camera sees."""
    render: Literal["full", "fast"] = "full"
    """`fast` leaves out shadows, multisampling and reflections: faster on a CPU, but the images
    differ from LIBERO's own."""
    settle_steps: int = 10
    """Control steps without movement before the first observation, in which objects come to
    rest."""
    max_steps: int | None = None
    """Steps after which an episode is truncated; None takes each suite's published limit (spatial
    220, object 280, goal 300, 10 520, 90 400)."""
    scene_seed: int = 0
    """Places the fixtures (cabinets, stoves), which LIBERO's start states leave out."""
    hard_reset: bool = False
    """Compile the scene anew for each episode. Slow; the states are the same."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"size must be at least 1, not {self.size}.")
        if self.settle_steps < 0:
            raise ConfigError(f"settle_steps must be at least 0, not {self.settle_steps}.")
        if self.max_steps is not None and self.max_steps < 1:
            raise ConfigError(f"max_steps must be at least 1, not {self.max_steps}.")
        if not 0 <= self.scene_seed < 2**32:
            raise ConfigError(f"scene_seed must be from 0 to 2**32 - 1, not {self.scene_seed}.")
        if self.render not in ("full", "fast"):
            raise ConfigError(f"render is 'full' or 'fast', not {self.render!r}.")


class Libero:
    """A suite of LIBERO's, in official order, or one of its tasks by name. The trial of seed k
    starts in the task's start state k, counted round."""

    Config: ClassVar = LiberoConfig
    preload: ClassVar[tuple[str, ...]] = ("hocket.adapters.envs.libero.env",)
    """Fork-safe: loads MuJoCo, robosuite and LIBERO without OpenGL."""

    def __init__(self, argument: str, config: LiberoConfig) -> None:
        self._suite, self._tasks = _find(argument)
        self._config = config

    @staticmethod
    def prepare_worker(index: int) -> None:
        """Called first in each worker: workers take turns over the EGL devices."""
        backends.set_worker(index)

    @staticmethod
    def require_data(argument: str) -> None:
        """Raise where the data of the tasks is missing: workers look in the same places."""
        suite, tasks = _find(argument)
        data = find_data()
        for task in tasks:
            data.bddl_file(suite, task)

    def tasks(self) -> tuple[TaskInfo, ...]:
        return tuple(
            TaskInfo(
                name=name,
                prompt=language(name),
                max_steps=self._config.max_steps or STEP_LIMITS[self._suite],
                control_rate=CONTROL_RATE,
                success_rule="first",
            )
            for name in self._tasks
        )

    def make(self, task: str) -> LiberoEnv:
        if task not in self._tasks:
            raise UnknownNameError(
                f"This suite has no task {task!r}.{did_you_mean(task, self._tasks)}"
            )
        from hocket.adapters.envs.libero.env import LiberoEnv

        return LiberoEnv(self._suite, task, self._config)


def _find(argument: str) -> tuple[str, tuple[str, ...]]:
    """The suite that a name means, and which of its tasks."""
    name = argument.strip()
    suite = _SHORT.get(name.lower(), name.lower())
    if suite in SUITES:
        return suite, SUITES[suite]
    wanted = name.replace(" ", "_").lower()
    for task in (task for tasks in SUITES.values() for task in tasks):
        if wanted == task.lower():
            return suite_of(task), (task,)
    if not name:
        raise UnknownNameError(f"Say which suite: {', '.join(f'libero:{s}' for s in _SHORT)}.")
    known = [*_SHORT, *SUITES, *(task for tasks in SUITES.values() for task in tasks)]
    raise UnknownNameError(
        f"LIBERO has no suite or task {argument!r}.{did_you_mean(name, known)} Suites: "
        f"{', '.join(_SHORT)}; or one task's name, as its .bddl file is called."
    )
