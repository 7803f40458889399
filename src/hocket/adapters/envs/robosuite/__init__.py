"""The suite `robosuite:<task>`: robosuite 1.5's tasks for one Panda. Importing it needs no
simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from hocket.core.plugins import did_you_mean
from hocket.core.settings import check_among, check_at_least
from hocket.core.specs import TaskInfo
from hocket.errors import UnknownNameError
from hocket.workers.env import gl
from hocket.workers.suites import find_task

if TYPE_CHECKING:
    from hocket.adapters.envs.robosuite.env import RobosuiteEnv

CONTROL_RATE = 20.0
TASKS: dict[str, tuple[str, int]] = {
    "Lift": ("lift the red cube", 400),
    "Stack": ("stack the red cube on the green cube", 500),
    "PickPlace": ("put each object into its bin", 1000),
    "PickPlaceSingle": ("put the object into its bin", 400),
    "PickPlaceMilk": ("put the milk into its bin", 400),
    "PickPlaceBread": ("put the bread into its bin", 400),
    "PickPlaceCereal": ("put the cereal into its bin", 400),
    "PickPlaceCan": ("put the can into its bin", 400),
    "NutAssembly": ("put each nut on its peg", 1000),
    "NutAssemblySingle": ("put the nut on its peg", 400),
    "NutAssemblySquare": ("put the square nut on the square peg", 400),
    "NutAssemblyRound": ("put the round nut on the round peg", 400),
    "Door": ("open the door", 500),
    "Wipe": ("wipe the table clean", 500),
    "ToolHang": ("assemble the frame and hang the tool on it", 700),
}
"""What each says is to be done, in our words: robosuite has none; and steps after which an episode
is truncated: robomimic's for the tasks that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobosuiteConfig(gl.GlConfig):
    plain_texts: ClassVar[tuple[str, ...]] = ("controller",)
    size: int = 256
    """Height and width of images, in pixels."""
    render: Literal["full", "fast"] = "full"
    """`fast` leaves out shadows, multisampling and reflections."""
    controller: str = "BASIC"
    """A composite controller of robosuite's, or its JSON file. BASIC moves the hand by
    differences of place and angle."""
    max_steps: int | None = None
    """Steps after which an episode is truncated; None takes each task's (400 to 1000)."""

    def __post_init__(self) -> None:
        check_at_least(self, size=1, max_steps=1)
        check_among(self, render=("full", "fast"))


class Robosuite:
    """One task of robosuite's, or `panda`, all of them. What an episode begins in follows from its
    seed alone: the scene is compiled anew, sizes of objects included."""

    Config: ClassVar = RobosuiteConfig
    preload: ClassVar[tuple[str, ...]] = ("hocket.adapters.envs.robosuite.env",)
    """Fork-safe: loads MuJoCo and robosuite without OpenGL."""
    prepare_worker = staticmethod(gl.set_worker)

    def __init__(self, argument: str, config: RobosuiteConfig) -> None:
        if argument != "panda" and argument not in TASKS:
            raise UnknownNameError(
                f"robosuite: has no task {argument!r}.{did_you_mean(argument, TASKS)} Known: "
                f"panda (all), {', '.join(TASKS)}."
            )
        self._names = tuple(TASKS) if argument == "panda" else (argument,)
        self._config = config

    def tasks(self) -> tuple[TaskInfo, ...]:
        return tuple(
            TaskInfo(
                name=name,
                prompt=TASKS[name][0],
                max_steps=self._config.max_steps or TASKS[name][1],
                control_rate=CONTROL_RATE,
            )
            for name in self._names
        )

    def make(self, task: str) -> RobosuiteEnv:
        find_task("robosuite", self.tasks(), task)
        from hocket.adapters.envs.robosuite.env import RobosuiteEnv

        return RobosuiteEnv(task, self._config)
