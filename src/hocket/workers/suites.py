"""What an env's name means, seen from inside a worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from numbers import Integral, Real
from typing import Any, get_args

from hocket.core import plugins
from hocket.core.contracts.batched import BatchedSuite
from hocket.core.contracts.env import Suite
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Ref, SuccessRule
from hocket.core.specs import TaskInfo
from hocket.core.wire import Described, Failed
from hocket.errors import EnvError, UnknownNameError, UsageError
from hocket.workers.env import gl

_RATES = ("control_rate", "control_freq", "control_hz")
"""Attributes in which envs say how many control steps a second they take."""
_DURATIONS = ("step_dt", "dt")
"""Attributes in which envs say how many seconds a control step takes."""
_PROMPTS = ("prompt", "task_description", "language_instruction", "instruction", "task")
"""Attributes in which envs say in words what is to be done."""
_LIMITS = ("max_steps", "_max_episode_steps", "max_episode_steps")
"""Attributes in which envs say after how many steps an episode ends at the latest."""


class OneTask:
    """A suite of the one task that a plain env factory makes."""

    def __init__(self, name: str, first: Any, factory: Callable[[], Any]) -> None:
        self._first: object | None = first
        self._factory = factory
        rule: Any = getattr(first, "success_rule", "first")
        if rule not in get_args(SuccessRule):
            raise EnvError(
                f"success_rule of {name!r} is {rule!r}; it is one of "
                f"{', '.join(get_args(SuccessRule))}."
            )
        self._task = with_details(TaskInfo(name=name, success_rule=rule), first)

    def tasks(self) -> Sequence[TaskInfo]:
        return (self._task,)

    def make(self, task: str) -> Any:
        """The env that told what the task is, and after that a new one each time."""
        if task != self._task.name:
            raise UnknownNameError(f"No task {task!r}; the only one is {self._task.name!r}.")
        env, self._first = self._first, None
        return env if env is not None else self._factory()


class Suites(dict[str, Any]):
    """The suites of a worker, by the name that trials carry; each is opened when first used."""

    def __init__(self, refs: Mapping[str, Ref], worker: int) -> None:
        self._refs = refs
        self._worker = worker

    def __missing__(self, name: str) -> Any:
        if name not in self._refs:
            near = plugins.did_you_mean(name, self._refs)
            raise UnknownNameError(f"This worker knows no suite {name!r}.{near}")
        self[name] = open_suite(self._refs[name], self._worker)
        return self[name]

    def describe(self, name: str) -> Described | Failed:
        """The answer to whoever asks for the tasks of a suite."""
        try:
            return Described(name, [asdict(task) for task in self[name].tasks()])
        except BaseException as exc:  # noqa: BLE001 - told to the parent, whatever it is
            return Failed.of(-1, -1, exc, f"The env {name!r}")


def find_task(suite: str, tasks: Sequence[TaskInfo], name: str) -> TaskInfo:
    infos = {info.name: info for info in tasks}
    if name not in infos:
        raise UnknownNameError(
            f"Suite {suite!r} has no task {name!r}.{plugins.did_you_mean(name, infos)}"
        )
    return infos[name]


def with_details(task: TaskInfo, env: Any) -> TaskInfo:
    """The task, with its env's prompt, step limit and control rate where the suite has none."""
    task = with_rate(task, env)
    return replace(
        task, prompt=task.prompt or prompt_of(env), max_steps=task.max_steps or limit_of(env)
    )


def with_rate(task: TaskInfo, env: Any) -> TaskInfo:
    """The task, with the control rate and the score that its env says where the suite says none."""
    if not task.control_rate:
        task = replace(task, control_rate=control_rate_of(env))
    key, least = (
        next((said for one in _layers(env) if (said := getattr(one, name, None)) is not None), None)
        for name in ("score_key", "success_at")
    )
    return task if task.score_key or not key else replace(task, score_key=key, success_at=least)


def prompt_of(env: Any) -> str:
    """What an env says in words that is to be done; empty where it says nothing."""
    said = (getattr(one, name, None) for name in _PROMPTS for one in _layers(env))
    return next((text for text in said if isinstance(text, str) and text), "")


def limit_of(env: Any) -> int | None:
    """Steps after which an env ends an episode, as far as it or a wrapper says so."""
    said = [getattr(one, name, None) for name in _LIMITS for one in _layers(env)]
    said.append(getattr(getattr(env, "spec", None), "max_episode_steps", None))
    limits = (int(one) for one in said if isinstance(one, Integral))
    return min((one for one in limits if one > 0), default=None)


def told_by(suite: object, env: object) -> tuple[tuple[str, ...], dict[str, str]]:
    """The notes of a suite and of its env, each once, and their facts, of which the env's stand."""
    notes = (*getattr(suite, "notes", ()), *getattr(env, "notes", ()))
    facts = {**getattr(suite, "facts", {}), **getattr(env, "facts", {})}
    return tuple(dict.fromkeys(map(str, notes))), facts


def _layers(env: Any) -> Iterator[Any]:
    """An env and the envs that it wraps, the outermost first. Wrappers of gymnasium forward no
    attributes."""
    while env is not None:
        yield env
        env = vars(env).get("env") if hasattr(env, "__dict__") else None


def control_rate_of(env: Any) -> float | None:
    """Control steps per second of simulated time as far as an env, single or batched, says them: in
    an attribute of its own, as gymnasium's `metadata["render_fps"]`, or as the length of a step."""
    inner = getattr(env, "unwrapped", env)
    metadata = getattr(env, "metadata", None)
    said = [getattr(one, name, None) for one in (env, inner) for name in _RATES]
    said.append(metadata.get("render_fps") if isinstance(metadata, Mapping) else None)
    lengths = [getattr(one, name, None) for one in (env, inner) for name in _DURATIONS]
    said += [1 / step_s for step_s in map(_positive, lengths) if step_s is not None]
    return next((rate for rate in map(_positive, said) if rate is not None), None)


def _positive(value: Any) -> float | None:
    """The value where it is a number above 0: envs have all kinds of things under these names."""
    found = float(value) if isinstance(value, Real) else 0.0
    return found if found > 0 and math.isfinite(found) else None


def open_suite(ref: Ref, worker: int | None = None) -> Suite | BatchedSuite:
    """The suite that a reference means: an adapter's, or one made of a plain env factory.

    The adapter's `prepare_worker` hook, where there is one, is called first with the number of
    the worker, before anything of the adapter's is built. Of a plain factory nothing is known: if
    it uses MuJoCo, that shall render.
    """
    if worker is not None and plugins.is_plain("envs", ref.name):
        gl.set_worker(worker)
        gl.choose_at_import()
    adapter = plugins.find("envs", ref.name)
    prepare = getattr(adapter.build, "prepare_worker", None)
    if prepare is not None and worker is not None:
        prepare(worker)

    def build() -> Any:
        return plugins.build("envs", ref.name, ref.config)

    found = build()
    if isinstance(found, (Suite, BatchedSuite)):
        return found
    if callable(getattr(found, "reset", None)) and callable(getattr(found, "step", None)):
        return OneTask(ref.name.rpartition(":")[2], found, build)
    raise EnvError(
        f"{ref.name!r} gave a {type(found).__name__}, which is neither an env (reset, step) nor a "
        f"suite (tasks, make)."
    )


def is_batched(spec: WorkerSpec) -> bool:
    """True where a worker's suites run as rows of a batched simulator; all or none of them must."""
    batched = [name for name, ref in spec.suites.items() if has_rows(ref)]
    if batched and len(batched) < len(spec.suites):
        plain = next(name for name in spec.suites if name not in batched)
        raise UsageError(
            f"{batched[0]!r} is a batched simulator and {plain!r} is not: one run cannot have "
            f"both. Give each a run of its own."
        )
    return bool(batched)


def has_rows(ref: Ref) -> bool:
    """True where an env's name means a batched simulator; its adapter's class tells, by the
    settings where that depends on them."""
    build = plugins.find("envs", ref.name).build
    choose = getattr(build, "has_rows", None)
    is_batched = isinstance(build, type) and issubclass(build, BatchedSuite)
    return is_batched and (choose is None or choose(ref.config))


def preloads(names: Sequence[str]) -> list[str]:
    """Modules that the adapters of these names declare safe to import before a fork. Only adapters
    that are known by name are asked: a user's own module is never imported before a fork."""
    modules: list[str] = []
    for name in names:
        if not plugins.is_plain("envs", name):
            modules += getattr(plugins.find("envs", name).build, "preload", ())
    return list(dict.fromkeys(modules))
