"""What a suite is, and what its envs may be able to do beyond gymnasium's contract.

Whoever brings an env writes a `gymnasium.Env`, and is done: any env id (`gym:CartPole-v1`) or
factory (`package.module:make_env`) runs unchanged, as a suite of one task whose `prompt`,
`max_steps`, `control_rate` and `success_rule` are read from the env's attributes of these names
where it has them; the control rate is also read from `metadata["render_fps"]` and from `dt`.
Whoever has several tasks writes a Suite; hocket's own are adapters. Suites and
envs live in workers, one env at a time in each process.

An env tells success as `info["success"]` (or `"is_success"`); where it never does, the outcome of
its episodes is FINISHED. Suites and envs may have an attribute `notes`, sentences that the user is
shown once, and `facts`, texts by name of what else their numbers depend on (a renderer, the digest
of a file), which run.yaml, report.json and cards repeat.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hocket.core.data import Array
from hocket.core.specs import TaskInfo
from hocket.errors import UnknownNameError

if TYPE_CHECKING:
    import gymnasium


def _of_task_and_seed(task: str, seed: int) -> int:
    """A hash of task and seed. Suite and repeat have no part in it, since the same task and seed
    mean the same start everywhere."""
    digest = hashlib.blake2b(f"{task}\0{seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, slots=True)
class StartScheme:
    """How a trial's seed becomes a drawn start."""

    seed: Callable[[str, int], int]
    """From task and seed to the seed of the generator that draws the start, 0 to 2^63 - 1."""
    is_independent: bool
    """Starts of different tasks at one seed are independent. Where two tasks draw alike from the
    seed itself, their trials of one seed succeed and fail together."""


def _of_seed(task: str, seed: int) -> int:
    del task
    return seed


TASK_AND_SEED, LEROBOT = "task-and-seed", "lerobot"
START_SCHEMES: Mapping[str, StartScheme] = {
    TASK_AND_SEED: StartScheme(_of_task_and_seed, is_independent=True),
    # As lerobot-eval starts its episodes; a suite that has it says what else differs.
    LEROBOT: StartScheme(_of_seed, is_independent=False),
}
"""The schemes by name: what the setting `start_scheme` of a suite may be."""


def start_scheme(name: str) -> StartScheme:
    try:
        return START_SCHEMES[name]
    except KeyError:
        raise UnknownNameError(
            f"There is no start scheme {name!r}. start_scheme is one of: "
            f"{', '.join(START_SCHEMES)}."
        ) from None


@dataclass(frozen=True, slots=True)
class Bridge:
    """What runs in a container in place of a worker, which stays outside."""

    program: str
    """A file for an interpreter of the image: `program SOCKET LIFE` serves at a path, and ends when
    whoever listens at the other path does."""
    python: tuple[str, ...]
    """The words that start the interpreter; empty leaves it to the runtime."""


@runtime_checkable
class Suite(Protocol):
    """What a name like `metaworld:mt10` means: its tasks, and how to make the env of each.

    The adapter's class may say more. `tasks_need_simulator = True`: `tasks` imports the simulator,
    so a worker is asked for them. `preload`: modules that are safe to import before workers are
    forked. `prepare_worker(index)`: a static method that is called in a worker, with its number,
    before anything is built there. `independent_starts = True`: the starts of its tasks at one seed
    are independent of each other, so that a round of one trial of each task holds as much evidence
    as it has trials. An adapter that draws starts for several tasks has a field `start_scheme` in
    its `Config`, and seeds its generator with `start_scheme(NAME).seed(task, seed)`.
    `bridge(argument)`: a static method that gives the Bridge by which its suites run in containers;
    the setting `link` of its `Config` is then the path of the socket there.
    """

    def tasks(self) -> Sequence[TaskInfo]: ...

    def make(self, task: str) -> gymnasium.Env[Any, Any]:
        """A new env of this task. Raises for a name that is not among the tasks."""


@runtime_checkable
class DeferredObservation(Protocol):
    """An env whose `step` is `advance` and then `observe`, so that nothing is rendered where nobody
    looks. `observe` changes nothing, however often it is called."""

    def advance(self, action: Array) -> tuple[float, bool, bool, dict[str, Any]]:
        """One control step; gives reward, terminated, truncated and info."""

    def observe(self) -> Any:
        """The observation now, as `step` would give it."""


@runtime_checkable
class Snapshot(Protocol):
    """An env whose whole simulator state is one float64 vector that can be taken and given back.
    Where the simulator keeps more than it tells (contacts), the env says `resumes_exactly = False`:
    pictures of a state are those of its moment, and what would follow from it may differ."""

    def get_state(self) -> Array:
        """A copy of the state, `[S]`, with clocks and random numbers."""

    def set_state(self, state: Array) -> None:
        """Go on from a state that was taken in an episode of the same seed."""


@runtime_checkable
class SelectsCameras(Protocol):
    """An env that renders only the cameras asked for."""

    @property
    def camera_keys(self) -> tuple[str, ...]:
        """All cameras that it has, as keys of its flattened observation."""

    def use_cameras(self, keys: Collection[str]) -> None:
        """Render these alone, from the next `reset` or `observe` on."""


@runtime_checkable
class RendersForPeople(Protocol):
    """An env that can render more cheaply where only people look."""

    def use_quality(self, quality: str) -> None:
        """From the next `observe` on: `full` is what policies are given, `look` leaves out what
        costs much and tells people little, such as shadows. An env begins with `full`."""


@runtime_checkable
class Holds(Protocol):
    """An env that knows how its robot stays where it is for a step: zeros where actions are
    differences, the last target where they are places, the gripper as it is."""

    def hold_action(self, last: Array | None) -> Any:
        """The action of one step of staying, after the action `last`; None right after a reset."""


ABILITIES: Mapping[str, type[Any]] = {
    "deferred": DeferredObservation,
    "snapshot": Snapshot,
    "cameras": SelectsCameras,
    "quality": RendersForPeople,
    "hold": Holds,
}
"""The abilities of envs, by the names that `EnvSpec.abilities` has for them."""


def members(ability: type[Any]) -> tuple[str, ...]:
    return tuple(name for name in vars(ability) if not name.startswith("_"))


def abilities_of(env: Any) -> tuple[str, ...]:
    """The names of the abilities that an env has.

    They are looked for on the class of the outermost env and not, as `isinstance` would, on the
    object: old wrappers forward attributes of the env inside, and would be stepped around.
    """
    return tuple(
        name
        for name, ability in ABILITIES.items()
        if all(hasattr(type(env), member) for member in members(ability))
    )
