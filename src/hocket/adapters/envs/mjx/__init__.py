"""Small manipulation tasks, thousands of rows at once: `mjx:reach`, `mjx:push`, `mjx:all`.

Simulated by MJX (MuJoCo in JAX), on a GPU where JAX has one, or with `--env.backend c` by MuJoCo
itself in all the cores' threads. Neither library is imported before the first simulator is made.

What the tasks are (starts, goals, what is seen, success) is arithmetic on whole batches `[N, ...]`,
written against numpy's names so that it runs under numpy and under JAX alike. Starts are drawn from
the trial's task and seed by hashing, row by row, and so depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from hocket.core.contracts.batched import BatchedEnv
from hocket.core.contracts.env import TASK_AND_SEED, start_scheme
from hocket.core.data import Array
from hocket.core.plugins import did_you_mean
from hocket.core.specs import TaskInfo
from hocket.errors import UnknownNameError
from hocket.workers.env import gl

if TYPE_CHECKING:
    from hocket.adapters.envs.mjx.view import MjxView

STATE_KEY = "observation/state"
CONTROL_RATE = 20.0
LINK = 0.3
SHOULDER_Z = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class MjxTask:
    info: TaskInfo
    rules: Reach | Push
    """`start(seeds)` gives positions of all joints `[k, nq]` and goals `[k, 3]`; `observe` what
    each row sees, `[N, S]` in 32-bit floats, and `distance` the metres from each row to its goal,
    `[N]`, both in the arrays of `xp`: numpy, or JAX's."""
    speed: float
    """Joint speed at a full action, rad/s."""
    near: float = 0.02
    """Success is to be closer to the goal than this, in metres."""
    substeps: int = 2
    eye: tuple[float, float, float] = (0.9, -0.8, 0.9)
    """Where the camera of videos stands, in metres."""

    start_scheme: str = TASK_AND_SEED

    def start(self, seeds: Sequence[int]) -> tuple[Array, Array]:
        """Positions of all joints `[k, nq]` and goals `[k, 3]` of the trials with these seeds."""
        draw = start_scheme(self.start_scheme).seed
        drawn = [draw(self.info.name, seed) for seed in seeds]
        return self.rules.start(np.array(drawn, np.int64))

    def xml(self) -> str:
        assets = files("hocket.adapters.envs.mjx").joinpath("assets")
        return assets.joinpath(f"{self.info.name}.xml").read_text()


def uniform(seeds: Array, draw: int, low: float, high: float) -> Array:
    """A number in a range for each seed: the `draw`-th of its own (splitmix64)."""
    with np.errstate(over="ignore"):
        word = np.asarray(seeds).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        word += np.uint64(draw + 1) * np.uint64(0xD1B54A32D192ED03)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word ^= word >> np.uint64(31)
    share = (word >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return low + (high - low) * share


class Reach:
    """Sees joints, their speeds, the tip and the goal: 12 numbers."""

    def start(self, seeds: Array) -> tuple[Array, Array]:
        qpos = np.stack(
            [uniform(seeds, 0, -1.0, 1.0), uniform(seeds, 1, 0.2, 1.0), uniform(seeds, 2, -2, -1)],
            axis=1,
        )
        yaw, pitch = uniform(seeds, 3, -1.8, 1.8), uniform(seeds, 4, -0.4, 0.9)
        far = uniform(seeds, 5, 0.25, 0.55)
        flat = far * np.cos(pitch)
        goal = [flat * np.cos(yaw), flat * np.sin(yaw), SHOULDER_Z + far * np.sin(pitch)]
        return qpos, np.stack(goal, axis=1)

    def observe(self, xp: Any, qpos: Any, qvel: Any, goal: Any) -> Any:
        seen = xp.concatenate([qpos, qvel, self._tip(xp, qpos), goal], axis=1)
        return seen.astype(xp.float32)

    def distance(self, xp: Any, qpos: Any, goal: Any) -> Any:
        apart = self._tip(xp, qpos) - goal
        return xp.sqrt((apart * apart).sum(axis=1))

    def _tip(self, xp: Any, qpos: Any) -> Any:
        yaw, shoulder, elbow = qpos[:, 0], qpos[:, 1], qpos[:, 1] + qpos[:, 2]
        flat = LINK * (xp.cos(shoulder) + xp.cos(elbow))
        high = SHOULDER_Z + LINK * (xp.sin(shoulder) + xp.sin(elbow))
        return xp.stack([flat * xp.cos(yaw), flat * xp.sin(yaw), high], axis=1)


class Push:
    """Sees joints, their speeds, the block and the goal: 10 numbers."""

    def start(self, seeds: Array) -> tuple[Array, Array]:
        angle, far = uniform(seeds, 0, -0.8, 0.8), uniform(seeds, 1, 0.3, 0.4)
        block = np.stack([far * np.cos(angle), far * np.sin(angle)], axis=1)
        turn, way = uniform(seeds, 2, -np.pi, np.pi), uniform(seeds, 3, 0.08, 0.15)
        goal = block + way[:, None] * np.stack([np.cos(turn), np.sin(turn)], axis=1)
        # A goal that the arm cannot push to is mirrored to the other side of the block.
        size = np.sqrt((goal * goal).sum(axis=1))
        goal = np.where(((size > 0.42) | (size < 0.26))[:, None], 2 * block - goal, goal)
        joints = np.stack(
            [uniform(seeds, 4, 0.5, 0.9), uniform(seeds, 5, -2.6, -2.2), uniform(seeds, 6, 1, 2)],
            axis=1,
        )
        return np.concatenate([joints, block], axis=1), np.pad(goal, ((0, 0), (0, 1)))

    def observe(self, xp: Any, qpos: Any, qvel: Any, goal: Any) -> Any:
        seen = xp.concatenate([qpos[:, :3], qvel[:, :3], qpos[:, 3:], goal[:, :2]], axis=1)
        return seen.astype(xp.float32)

    def distance(self, xp: Any, qpos: Any, goal: Any) -> Any:
        apart = qpos[:, 3:] - goal[:, :2]
        return xp.sqrt((apart * apart).sum(axis=1))


def _info(name: str, prompt: str, *, max_steps: int) -> TaskInfo:
    return TaskInfo(name=name, prompt=prompt, max_steps=max_steps, control_rate=CONTROL_RATE)


TASKS: Mapping[str, MjxTask] = {
    "reach": MjxTask(
        info=_info("reach", "Move the tip of the arm to the goal.", max_steps=100),
        rules=Reach(),
        speed=2.0,
    ),
    "push": MjxTask(
        info=_info("push", "Push the block to the goal.", max_steps=200),
        rules=Push(),
        speed=4.0,
        eye=(0.35, -0.5, 0.8),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MjxConfig:
    plain_texts: ClassVar[tuple[str, ...]] = ("start_scheme",)
    backend: Literal["jax", "c"] = "jax"
    """`jax`: MJX, in 32-bit floats, compiled for the number of rows when it starts. `c`: MuJoCo's
    own threads, in 64-bit floats. Results of the two differ in the last digits."""
    threads: int = 0
    """Threads of the backend `c`; 0 takes one for each core."""
    start_scheme: str = TASK_AND_SEED
    """How a seed becomes a start. task-and-seed: a start of its own for each task and seed."""

    def __post_init__(self) -> None:
        start_scheme(self.start_scheme)


class Mjx:
    Config: ClassVar = MjxConfig
    independent_starts: ClassVar[bool] = True

    def __init__(self, argument: str, config: MjxConfig) -> None:
        if argument not in ("", "all", *TASKS):
            raise UnknownNameError(
                f"MJX has no task {argument!r}.{did_you_mean(argument, TASKS)} It has: "
                f"{', '.join(TASKS)}, and all."
            )
        self._names = tuple(TASKS) if argument in ("", "all") else (argument,)
        self._config = config

    def tasks(self) -> Sequence[TaskInfo]:
        return tuple(TASKS[name].info for name in self._names)

    def make_rows(self, task: str, rows: int) -> BatchedEnv:
        """A simulator of one task: each task has a model of its own."""
        if self._config.backend == "c":
            from hocket.adapters.envs.mjx.threads import ThreadedRows

            return ThreadedRows(self._task(task), rows, self._config.threads)
        from hocket.adapters.envs.mjx.jax import JaxRows

        return JaxRows(self._task(task), rows)

    prepare_worker = staticmethod(gl.set_worker)

    def make(self, task: str) -> MjxView:
        """One row to look at, for videos of what rows did."""
        from hocket.adapters.envs.mjx.view import MjxView

        return MjxView(self._task(task))

    def _task(self, name: str) -> MjxTask:
        return replace(TASKS[name], start_scheme=self._config.start_scheme)
