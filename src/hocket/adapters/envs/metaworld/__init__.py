"""The suite `metaworld:<task>|mt10|mt50`. Importing it needs no simulator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from hocket.core.contracts.env import TASK_AND_SEED, start_scheme
from hocket.core.plugins import did_you_mean
from hocket.core.settings import check_among, check_at_least
from hocket.core.specs import TaskInfo
from hocket.errors import ConfigError, UnknownNameError
from hocket.workers.env import gl
from hocket.workers.suites import find_task

if TYPE_CHECKING:
    from hocket.adapters.envs.metaworld.env import MetaWorldEnv

CONTROL_RATE = 80.0
"""Five physics steps of 2.5 ms to a control step."""

PROMPTS: dict[str, str] = {
    "assembly-v3": "pick up the nut and put it onto the peg",
    "basketball-v3": "throw the basketball into the hoop",
    "bin-picking-v3": "move the block from one bin to the other",
    "box-close-v3": "put the lid on the box",
    "button-press-topdown-v3": "press the button from above",
    "button-press-topdown-wall-v3": "reach over the wall and press the button from above",
    "button-press-v3": "press the button",
    "button-press-wall-v3": "go around the wall and press the button",
    "coffee-button-v3": "press the button of the coffee machine",
    "coffee-pull-v3": "pull the mug away from the coffee machine",
    "coffee-push-v3": "push the mug under the coffee machine",
    "dial-turn-v3": "turn the dial half way round",
    "disassemble-v3": "lift the nut off the peg",
    "door-close-v3": "close the door",
    "door-lock-v3": "lock the door by turning its lock",
    "door-open-v3": "open the door",
    "door-unlock-v3": "unlock the door by turning its lock",
    "hand-insert-v3": "put the hand into the hole",
    "drawer-close-v3": "push the drawer shut",
    "drawer-open-v3": "pull the drawer open",
    "faucet-open-v3": "turn the faucet on",
    "faucet-close-v3": "turn the faucet off",
    "hammer-v3": "pick up the hammer and drive the nail in",
    "handle-press-side-v3": "press the handle down from the side",
    "handle-press-v3": "press the handle down",
    "handle-pull-side-v3": "pull the handle up from the side",
    "handle-pull-v3": "pull the handle up",
    "lever-pull-v3": "pull the lever up",
    "peg-insert-side-v3": "insert the peg into the hole in the side of the box",
    "pick-place-wall-v3": "lift the puck over the wall and bring it to the goal",
    "pick-out-of-hole-v3": "lift the puck out of the hole and bring it to the goal",
    "reach-v3": "move the hand to the goal",
    "push-back-v3": "push the puck back to the goal",
    "push-v3": "push the puck to the goal",
    "pick-place-v3": "pick up the puck and bring it to the goal",
    "plate-slide-v3": "slide the plate into the cabinet",
    "plate-slide-side-v3": "slide the plate sideways into the cabinet",
    "plate-slide-back-v3": "slide the plate back out of the cabinet",
    "plate-slide-back-side-v3": "slide the plate sideways out of the cabinet",
    "peg-unplug-side-v3": "pull the peg out of the side of the box",
    "soccer-v3": "kick the ball into the goal",
    "stick-push-v3": "pick up the stick and push the thermos with it",
    "stick-pull-v3": "pick up the stick and pull the thermos with it",
    "push-wall-v3": "push the puck around the wall to the goal",
    "reach-wall-v3": "reach over the wall to the goal",
    "shelf-place-v3": "pick up the block and put it on the shelf",
    "sweep-into-v3": "sweep the puck into the hole",
    "sweep-v3": "sweep the puck off the table",
    "window-open-v3": "slide the window open",
    "window-close-v3": "slide the window shut",
}
"""The 50 tasks, and what to do in each as one sentence."""

MT10: tuple[str, ...] = (
    "reach-v3",
    "push-v3",
    "pick-place-v3",
    "door-open-v3",
    "drawer-open-v3",
    "drawer-close-v3",
    "button-press-topdown-v3",
    "peg-insert-side-v3",
    "window-open-v3",
    "window-close-v3",
)

CAMERAS: tuple[str, ...] = (
    "topview",
    "corner",
    "corner2",
    "corner3",
    "corner4",
    "behindGripper",
    "gripperPOV",
)

UPSIDE_DOWN: frozenset[str] = frozenset({"corner", "corner2", "corner3", "corner4"})
"""Cameras that the model hangs upside down; their images are turned by half a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaWorldConfig(gl.GlConfig):
    plain_texts: ClassVar[tuple[str, ...]] = ("cameras", "start_scheme")
    cameras: tuple[str, ...] = ("corner2",)
    """Cameras to render where the policy wants images: topview, corner, corner2, corner3, corner4,
    behindGripper, gripperPOV. The first is `observation/image`, gripperPOV is
    `observation/wrist_image`, any other is `observation/<camera>_image`."""
    layout: Literal["own", "lerobot"] = "own"
    """`lerobot` shows what LeRobot's MetaWorld env shows, so that checkpoints that were trained on
    that are evaluated as they are: 4 numbers of the state, corner2 moved to its place there."""
    size: int = 0
    """Height and width of images, in pixels. 0 takes 224, and 480 in LeRobot's layout."""
    prompts: str = ""
    """A JSON file with a prompt for each task, or LeRobot's own `envs/metaworld_config.json`: for
    checkpoints that read prompts. Empty takes hocket's."""
    render: Literal["full", "fast"] = "full"
    """`fast` leaves out shadows, multisampling and reflections: about six times faster on a CPU,
    but the images differ from MetaWorld's own."""
    hide_goal: bool = False
    """Put zeros where the state has the goal's position."""
    max_steps: int = 500
    """Steps after which an episode is truncated."""
    start_scheme: str = TASK_AND_SEED
    """How a seed becomes a start. task-and-seed: a start of its own for each task and seed.
    lerobot: as lerobot-eval's, the second draw from the seed itself."""

    def __post_init__(self) -> None:
        start_scheme(self.start_scheme)
        for camera in self.cameras:
            if camera not in CAMERAS:
                raise ConfigError(
                    f"MetaWorld has no camera {camera!r}.{did_you_mean(camera, CAMERAS)} It has: "
                    f"{', '.join(CAMERAS)}."
                )
        if len(set(self.cameras)) < len(self.cameras):
            raise ConfigError(f"A camera is named twice in {self.cameras}.")
        check_among(self, layout=("own", "lerobot"), render=("full", "fast"))
        if self.size == 0:
            object.__setattr__(self, "size", 480 if self.layout == "lerobot" else 224)
        check_at_least(self, size=1, max_steps=1)


class MetaWorld:
    """MetaWorld's tasks: one by name (`push-v3` or `push`), the ten of MT10, or all fifty."""

    Config: ClassVar = MetaWorldConfig
    preload: ClassVar[tuple[str, ...]] = ("hocket.adapters.envs.metaworld.env",)
    """Fork-safe: loads MuJoCo and MetaWorld without OpenGL, which each worker chooses later."""
    independent_starts: ClassVar[bool] = True

    def __init__(self, argument: str, config: MetaWorldConfig) -> None:
        self._tasks = _task_names(argument)
        self._config = config
        self._prompts = _prompts(Path(config.prompts)) if config.prompts else PROMPTS

    prepare_worker = staticmethod(gl.set_worker)

    def tasks(self) -> tuple[TaskInfo, ...]:
        return tuple(
            TaskInfo(
                name=name,
                prompt=self._prompts[name],
                max_steps=self._config.max_steps,
                control_rate=CONTROL_RATE,
            )
            for name in self._tasks
        )

    def make(self, task: str) -> MetaWorldEnv:
        find_task("metaworld", self.tasks(), task)
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


def _prompts(file: Path) -> Mapping[str, str]:
    """A prompt for each of the 50 tasks, from a user's file or from LeRobot's."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"The prompts in {file} cannot be read: {exc}") from exc
    found = found.get("TASK_DESCRIPTIONS", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise ConfigError(f'{file} must hold a prompt for each task: {{"push-v3": "..."}}.')
    if unknown := sorted(set(found) - set(PROMPTS)):
        raise ConfigError(
            f"{file}: MetaWorld has no task {unknown[0]!r}.{did_you_mean(unknown[0], PROMPTS)}"
        )
    return {**PROMPTS, **found}
