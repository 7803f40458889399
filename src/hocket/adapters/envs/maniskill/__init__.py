"""The suites `maniskill:<id>`, any task that ManiSkill 3 registers, and `simpler:widowx`, its port
of SimplerEnv. Importing this needs no simulator.

A scene of PhysX's on a CPU is one env, in a process of its own; with CUDA all lanes are rows of one
simulator (`--env.sim_backend` says otherwise).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hocket.adapters.envs.vector import Vector, VectorConfig
from hocket.core.settings import check_among, check_at_least, json_object
from hocket.core.specs import TaskInfo
from hocket.errors import ConfigError, UnknownNameError
from hocket.workers.suites import find_task

if TYPE_CHECKING:
    from hocket.adapters.envs.maniskill.env import ManiSkillEnv
    from hocket.adapters.envs.maniskill.rows import ManiSkillRows

ON_CPU = "physx_cpu"
PORT = "the ManiSkill 3 port of SimplerEnv"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManiSkillConfig(VectorConfig):
    plain_texts: ClassVar[tuple[str, ...]] = ("prompt", "obs_mode", "control_mode")
    obs_mode: str = "state"
    """What is observed: state, or pictures (rgb, rgb+segmentation ...), which are drawn where
    somebody looks."""
    control_mode: str | None = None
    """None takes the robot's default."""
    sim_backend: str = "auto"
    """auto takes CUDA where this machine has it, else physx_cpu."""
    render_backend: str | None = None
    """None takes a GPU where there is one, else the CPU; `none` draws nothing."""
    kwargs: str = "{}"
    """Other arguments for gymnasium.make, as a JSON object: '{"robot_uids": "fetch"}'."""
    rows: Literal["exact", "fast"] = "exact"
    """How rows of one simulator wait for each other. exact: all step together or none does, and
    they begin together. fast: rows that wait are put back, and what that changes is measured when
    the run begins."""

    def __post_init__(self) -> None:
        check_among(self, rows=("exact", "fast"))
        check_at_least(self, max_steps=1)
        _ = self.arguments

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments for gymnasium.make but the number of scenes."""
        names = ("obs_mode", "control_mode", "sim_backend", "render_backend")
        told = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {**told, **json_object("kwargs", self.kwargs)}


class ManiSkill(Vector):
    Config: ClassVar = ManiSkillConfig

    def __init__(self, argument: str, config: ManiSkillConfig) -> None:
        if not argument:
            raise ConfigError("No task is named. Write maniskill:PickCube-v1, for one.")
        self._name = argument
        self._config = config

    @staticmethod
    def settle(config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings with a choice made that depends on the machine."""
        settled = dict(config)
        if config.get("sim_backend", "auto") == "auto":
            has_cuda = shutil.which("nvidia-smi") is not None
            settled["sim_backend"] = "physx_cuda" if has_cuda else ON_CPU
        if settled.get("rows") == "fast" and not ManiSkill.has_rows(settled):
            raise ConfigError("--env.rows is for rows of one simulator: on a CPU there are none.")
        return settled

    @staticmethod
    def has_rows(config: Mapping[str, Any]) -> bool:
        """True where these settings mean many rows of one simulator."""
        return config.get("sim_backend") not in (ON_CPU, "cpu")

    def make(self, task: str) -> ManiSkillEnv:
        find_task("maniskill", self.tasks(), task)
        from hocket.adapters.envs.maniskill.env import ManiSkillEnv, make_scenes

        return ManiSkillEnv(make_scenes(task, 1, self._config.arguments), task)

    def make_rows(self, task: str, rows: int) -> ManiSkillRows:
        from hocket.adapters.envs.maniskill.env import make_scenes
        from hocket.adapters.envs.maniskill.rows import ManiSkillRows

        made = make_scenes(task, rows, self._config.arguments)
        return ManiSkillRows(made, task, is_exact=self._config.rows == "exact")


WIDOWX: Mapping[str, tuple[str, int]] = {
    "PutSpoonOnTableClothInScene-v1": ("put the spoon on the towel", 60),
    "PutCarrotOnPlateInScene-v1": ("put carrot on plate", 60),
    "StackGreenCubeOnYellowCubeBakedTexInScene-v1": (
        "stack the green block on the yellow block",
        60,
    ),
    "PutEggplantInBasketScene-v1": ("put eggplant into yellow basket", 120),
}
"""The tasks as the port calls them: what it says is to be done, and its step limit."""
STARTS = 24
"""Numbered starts of each task, as SimplerEnv evaluates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimplerConfig:
    max_steps: int | None = None
    """Steps after which an episode ends; None takes each task's own (60, and 120 in the sink)."""
    render_backend: str | None = None
    """None takes a GPU where there is one, else the CPU."""

    def __post_init__(self) -> None:
        check_at_least(self, max_steps=1)


class Simpler:
    """SimplerEnv's WidowX tasks in its port to ManiSkill 3. The trial of seed k begins in numbered
    start k, counted round, and succeeds if it does so at its last step: an episode goes on to its
    limit. Numbers of SimplerEnv on ManiSkill 2 are of another simulator."""

    Config: ClassVar = SimplerConfig
    notes: ClassVar[tuple[str, ...]] = (
        f"simpler: is {PORT}; its numbers are not those of SimplerEnv on ManiSkill 2.",
    )
    facts: ClassVar[Mapping[str, str]] = {"simulator": PORT}

    def __init__(self, argument: str, config: SimplerConfig) -> None:
        if argument != "widowx" and argument not in WIDOWX:
            raise UnknownNameError(
                f"simpler: has widowx, and its tasks {', '.join(WIDOWX)}; not {argument!r}."
            )
        self._names = tuple(WIDOWX) if argument == "widowx" else (argument,)
        self._config = config

    def tasks(self) -> Sequence[TaskInfo]:
        return [
            TaskInfo(
                name=name,
                prompt=WIDOWX[name][0],
                max_steps=self._config.max_steps or WIDOWX[name][1],
                control_rate=5.0,
                success_rule="final",
            )
            for name in self._names
        ]

    def make(self, task: str) -> ManiSkillEnv:
        find_task("simpler", self.tasks(), task)
        from hocket.adapters.envs.maniskill.env import SimplerEnv, make_scenes

        arguments = {"obs_mode": "rgb+segmentation", "sim_backend": ON_CPU}
        if self._config.render_backend is not None:
            arguments["render_backend"] = self._config.render_backend
        return SimplerEnv(make_scenes(task, 1, arguments), task)
