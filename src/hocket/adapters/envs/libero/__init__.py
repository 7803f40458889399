"""The suite `libero:spatial|object|goal|10|90|<task>`. Importing it needs no simulator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from hocket.adapters.envs.libero.data import find_data
from hocket.core.contracts.env import LEROBOT
from hocket.core.plugins import did_you_mean
from hocket.core.settings import check_among, check_at_least
from hocket.core.specs import TaskInfo
from hocket.errors import ConfigError, UnknownNameError
from hocket.workers.env import gl
from hocket.workers.suites import find_task

if TYPE_CHECKING:
    from hocket.adapters.envs.libero.env import LiberoEnv

CONTROL_RATE = 20.0
VLA_EVAL = "vla-eval"
"""The start scheme of vla-eval's LIBERO."""
CAMERAS = ("agentview", "robot0_eye_in_hand")
SUITES: dict[str, tuple[str, ...]] = {
    suite: tuple(tasks.split())
    for suite, tasks in re.findall(
        r"(\w+):\n((?:\w+\n)+)", Path(__file__).with_name("tasks.txt").read_text("ascii")
    )
}
"""Tasks in their official order."""

STEP_LIMITS: dict[str, int] = {
    "libero_spatial": 220,
    "libero_object": 280,
    "libero_goal": 300,
    "libero_10": 520,
    "libero_90": 400,
}
"""As OpenPI's and OpenVLA's evaluations publish them: the longest demonstration, and some more."""
_SHORT = {suite.removeprefix("libero_"): suite for suite in SUITES}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiberoConfig(gl.GlConfig):
    plain_texts: ClassVar[tuple[str, ...]] = ("start_scheme",)
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
    start_scheme: str = "state"
    """How a seed becomes a start. state: seed k is start state k, counted round. lerobot: as
    lerobot-eval's, which places the fixtures by the seed, and counts start states from the first
    seed of the run. vla-eval: fixtures stand as in the first episode of a process of vla-eval's."""
    first_seed: int = 0
    """With lerobot's start scheme: the seed whose start state is the first."""
    hard_reset: bool = False
    """Compile the scene anew for each episode. Slow; the states are the same."""

    def __post_init__(self) -> None:
        check_at_least(self, size=1, settle_steps=0, max_steps=1)
        check_among(self, render=("full", "fast"), start_scheme=("state", LEROBOT, VLA_EVAL))
        if not 0 <= self.scene_seed < 2**32:
            raise ConfigError(f"scene_seed must be from 0 to 2**32 - 1, not {self.scene_seed}.")


class Libero:
    """A suite of LIBERO's, in official order, or one of its tasks by name. The trial of seed k
    starts in the task's start state k, counted round."""

    Config: ClassVar = LiberoConfig
    preload: ClassVar[tuple[str, ...]] = ("hocket.adapters.envs.libero.env",)
    """Fork-safe: loads MuJoCo, robosuite and LIBERO without OpenGL."""

    def __init__(self, argument: str, config: LiberoConfig) -> None:
        self._suite, self._tasks = _find(argument)
        self._config = config

    prepare_worker = staticmethod(gl.set_worker)

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
            )
            for name in self._tasks
        )

    def make(self, task: str) -> LiberoEnv:
        find_task("libero", self.tasks(), task)
        from hocket.adapters.envs.libero.env import LiberoEnv

        return LiberoEnv(self._suite, task, self._config)


def _find(argument: str) -> tuple[str, tuple[str, ...]]:
    """The suite that a name means, and which of its tasks."""
    name = argument.strip()
    suite = _SHORT.get(name.lower(), name.lower())
    if suite in SUITES:
        return suite, SUITES[suite]
    wanted = name.replace(" ", "_").lower()
    for suite, tasks in SUITES.items():
        for task in tasks:
            if wanted == task.lower():
                return suite, (task,)
    if not name:
        raise UnknownNameError(f"Say which suite: {', '.join(f'libero:{s}' for s in _SHORT)}.")
    known = [*_SHORT, *SUITES, *(task for tasks in SUITES.values() for task in tasks)]
    raise UnknownNameError(
        f"LIBERO has no suite or task {argument!r}.{did_you_mean(name, known)} Suites: "
        f"{', '.join(_SHORT)}; or one task's name, as its .bddl file is called."
    )


def language(task: str) -> str:
    """What to do, in words: a task's name without the scene that it begins with."""
    words = task.split("_")
    if task[0].isupper():
        words = words[next(i for i, word in enumerate(words) if word.startswith("SCENE")) + 1 :]
    return " ".join(words)
