"""The suite `vla-eval:BENCHMARK[:CONFIG]`: a benchmark class of the package vla-eval, such as
`vla-eval:libero` or `vla-eval:libero:configs/libero_goal.yaml`, or any class of its kind by
`vla-eval:package.module:Class`.

Their `step` draws pictures itself, so that every step costs its frames, wherever nobody looks. An
observation is made as often as vla-eval's own loop makes one: some of their benchmarks count them.
Their LIBERO seeds once and goes on drawing where fixtures stand, so that an episode depends on
those before it; here whatever draws is seeded anew for each trial.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
import yaml
from gymnasium import spaces

from hocket.core.data import Array
from hocket.core.plugins import did_you_mean
from hocket.core.settings import check_among, check_at_least, json_object
from hocket.core.specs import TaskInfo
from hocket.errors import ConfigError, EnvError, UnknownNameError
from hocket.system.bounded_yaml import load_yaml
from hocket.workers.env import gl
from hocket.workers.suites import find_task

_PACKAGE = "vla_eval.benchmarks"
_LIMIT = 300
"""Steps of an episode where a benchmark does not say, as vla-eval has it."""
_PROMPT = "task_description"


@dataclass(frozen=True, slots=True, kw_only=True)
class VlaEvalEnvConfig(gl.GlConfig):
    params: str = "{}"
    """Arguments of the benchmark's class, as a JSON object: '{"suite": "libero_goal"}'. They come
    before those of a file."""
    max_steps: int | None = None
    """Steps after which an episode is truncated; None takes the benchmark's."""
    action_size: int | None = None
    """Numbers of an action, for a benchmark that does not say."""
    graphics: Literal["auto", "gpu", "cpu"] = "auto"
    """What vla-eval calls render: auto takes the CPU where the benchmark can and no GPU is seen."""

    def __post_init__(self) -> None:
        json_object("params", self.params)
        check_at_least(self, max_steps=1, action_size=1)
        check_among(self, graphics=("auto", "gpu", "cpu"))


class VlaEvalBenchmark:
    """The tasks of one benchmark. Trial n of a task is vla-eval's episode n, counted round where
    the benchmark has only so many."""

    Config: ClassVar = VlaEvalEnvConfig
    tasks_need_simulator: ClassVar = True
    prepare_worker = staticmethod(gl.set_worker)

    def __init__(self, argument: str, config: VlaEvalEnvConfig) -> None:
        self._config = config
        name, params = _read(argument)
        self._name = name
        self.params = {**params, **json_object("params", config.params)}
        self._benchmark: Any = None
        self._tasks: dict[str, Mapping[str, Any]] = {}

    def tasks(self) -> tuple[TaskInfo, ...]:
        says = self._says
        limit = self._config.max_steps or says.get("max_steps") or _LIMIT
        return tuple(
            TaskInfo(
                name=name,
                prompt=str(task.get("name", name)),
                max_steps=int(limit),
                success_rule="final",
            )
            for name, task in self._tasks.items()
        )

    def make(self, task: str) -> gymnasium.Env[Any, Any]:
        info = find_task("vla-eval", self.tasks(), task)
        benchmark = self._opened()
        env = VlaEvalEnv(benchmark, self._tasks[task], info, self._says)
        env.facts = {"benchmark": type(benchmark).__qualname__, "params": json.dumps(self.params)}
        env.action_space = _actions(benchmark, self._config.action_size)
        return env

    @cached_property
    def _says(self) -> Mapping[str, Any]:
        return dict(self._opened().get_metadata())

    def _opened(self) -> Any:
        """The benchmark, made once in each worker: their classes keep an env for all episodes."""
        if self._benchmark is not None:
            return self._benchmark
        made = find_class(self._name)
        unknown = set(self.params) - set(known := inspect.signature(made).parameters)
        if unknown and not any(one.kind is one.VAR_KEYWORD for one in known.values()):
            name = min(unknown)
            raise ConfigError(
                f"{made.__name__} has no argument {name!r}.{did_you_mean(name, known)} It has: "
                f"{', '.join(known) or 'none'}."
            )
        made.configure_render(self._graphics(made))
        try:
            self._benchmark = made(**self.params)
            listed = self._benchmark.get_tasks()
        except ImportError as exc:
            raise ConfigError(
                f"vla-eval:{self._name} needs {exc.name or exc}, which this interpreter lacks. "
                "Name one that has it and vla-eval: --env-python PATH."
            ) from exc
        for task in listed:
            self._tasks[self._unused(str(task.get("name", task)))] = task
        if not self._tasks:
            raise ConfigError(f"vla-eval:{self._name} has no tasks as {self.params} configure it.")
        return self._benchmark

    def _graphics(self, made: Any) -> str:
        if self._config.graphics != "auto":
            return self._config.graphics
        can = made.render_backends
        return "gpu" if "cpu" not in can or Path("/dev/nvidia0").exists() else "cpu"

    def _unused(self, name: str) -> str:
        """Tasks of several scenes may be called alike; the second one is `name (2)`."""
        same = [one for one in self._tasks if one == name or one.startswith(f"{name} (")]
        return f"{name} ({len(same) + 1})" if same else name


class VlaEvalEnv(gymnasium.Env[Any, Any]):
    """One task, over a benchmark that other tasks of the worker use after it."""

    def __init__(
        self, benchmark: Any, task: Mapping[str, Any], info: TaskInfo, says: Mapping[str, Any]
    ) -> None:
        self._benchmark, self._task, self._info = benchmark, dict(task), info
        self._episodes = says.get("max_episodes_per_task")
        self._seen: dict[str, Any] = {}
        self._prompt = ""
        self._steps = 0
        self.facts: dict[str, str] = {}
        self.notes = ("vla-eval draws pictures at every step, so that chunks save no frames here.",)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        episode = seed or 0
        task = {
            **self._task,
            "episode_idx": episode % self._episodes if self._episodes else episode,
        }
        benchmark = self._benchmark
        _seed_anew(benchmark)
        # What their `start_episode` does, but for its clock and its coroutine.
        from vla_eval.benchmarks.base import StepResult
        from vla_eval.recording import NullEpisodeRecorder

        benchmark._task, benchmark._recorder = task, NullEpisodeRecorder()
        raw = benchmark.reset(task)
        benchmark._last_result = StepResult(obs=raw, reward=0.0, done=False, info={})
        self._task, self._steps, self._prompt = task, 0, ""
        self._seen = self._observe(raw)
        return self._seen, {}

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        benchmark = self._benchmark
        result = benchmark.step({"actions": np.array(action, np.float32)})
        benchmark._last_result = result
        self._steps += 1
        done = bool(benchmark.check_done(result))
        if not done:
            self._seen = self._observe(result.obs)
        told = dict(benchmark.get_step_result(result))
        if "success" not in told:
            raise EnvError(f"{type(benchmark).__name__} tells no success at the end of an episode.")
        return self._seen, float(result.reward), done, False, told

    def _observe(self, raw: Any) -> dict[str, Any]:
        """What their model servers are sent; pictures under the names of their cameras."""
        made = dict(self._benchmark.make_obs(raw, self._task))
        prompt = str(made.pop(_PROMPT, self._info.prompt))
        if self._prompt and prompt != self._prompt:
            raise EnvError(
                f"{type(self._benchmark).__name__} says something else to do in the middle of an "
                f"episode ({self._prompt!r}, then {prompt!r}): hocket's episodes have one prompt."
            )
        self._prompt = prompt
        images = {str(key): np.asarray(one) for key, one in made.pop("images", {}).items()}
        rest = {k: v for k, v in made.items() if isinstance(v, Mapping) or _is_array(v)}
        return {**rest, **images, "prompt": prompt}

    def hold_action(self, last: Array | None) -> Array:
        """What the benchmark sends while a model thinks; most of them do not say."""
        given = None if last is None else {"actions": np.array(last, np.float32)}
        try:
            held = self._benchmark.get_hold_action(given)
        except NotImplementedError as exc:
            raise EnvError(
                f"{type(self._benchmark).__name__} does not say how it holds still."
            ) from exc
        return np.asarray(held["actions"], np.float32)

    def close(self) -> None:
        self._benchmark.cleanup()


def find_class(name: str) -> Any:
    """The benchmark class of a folder of vla-eval's, or `module:Class`."""
    module, _, wanted = name.partition(":")
    if not wanted:
        if importlib.util.find_spec("vla_eval") is None:
            raise ConfigError(
                "The package vla-eval is not installed here. Name an interpreter that has it and "
                "the benchmark: --env-python PATH."
            )
        package = importlib.import_module(_PACKAGE)
        names = sorted(
            path.parent.name for path in Path(package.__path__[0]).glob("*/benchmark.py")
        )
        if name not in names:
            raise UnknownNameError(
                f"vla-eval has no benchmark {name!r}.{did_you_mean(name, names)} It has: "
                f"{', '.join(names)}."
            )
        module = f"{_PACKAGE}.{name}.benchmark"
    try:
        found = importlib.import_module(module)
    except ImportError as exc:
        raise ConfigError(f"vla-eval:{name} cannot be imported: {exc}.") from exc
    from vla_eval.benchmarks.base import StepBenchmark

    kinds = [
        one
        for one in vars(found).values()
        if inspect.isclass(one) and issubclass(one, StepBenchmark) and not inspect.isabstract(one)
        if one.__name__ == wanted or (not wanted and one.__module__ == module)
    ]
    if len(kinds) != 1:
        told = ", ".join(one.__name__ for one in kinds) or "none"
        raise UnknownNameError(
            f"vla-eval:{name} must name one class that is stepped (StepBenchmark); found: {told}."
        )
    return kinds[0]


def _read(argument: str) -> tuple[str, dict[str, Any]]:
    """The benchmark's name, and the arguments that a file of vla-eval's gives its class."""
    name, _, file = argument.rpartition(":")
    if not file.endswith((".yaml", ".yml")):
        name, file = argument, ""
    if not name:
        raise UnknownNameError("Say which benchmark: vla-eval:libero, vla-eval:robocasa ...")
    if not file:
        return name, {}
    try:
        found = load_yaml(Path(file).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(f"{file} cannot be read: {exc}") from exc
    entries = found.get("benchmarks", [found]) if isinstance(found, dict) else []
    fit = [one for one in entries if isinstance(one, dict) and _is_about(one, name)]
    if len(fit) != 1:
        raise ConfigError(f"{file} has {len(fit)} entries of the benchmark {name!r}; one is read.")
    params = fit[0].get("params") or {}
    if not isinstance(params, dict):
        raise ConfigError(f"params of {file} are no mapping.")
    return name, params


def _is_about(entry: Mapping[str, Any], name: str) -> bool:
    where = str(entry.get("benchmark", ""))
    return where == name or where.startswith(f"{_PACKAGE}.{name}.")


def _is_array(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "biuf"


def _actions(benchmark: Any, size: int | None) -> spaces.Box:
    """Its parts one after the other, each within its range where it has one."""
    try:
        parts = list(benchmark.get_action_spec().values())
    except NotImplementedError:
        parts = []
    said = sum(one.dims for one in parts)
    if size is not None and said in (0, size):
        return spaces.Box(-np.inf, np.inf, (size,), np.float32)
    if size is not None or said == 0:
        told = f"has actions of {said} numbers" if said else "does not say what moves it"
        raise ConfigError(
            f"{type(benchmark).__name__} {told}: --env.action-size N is for those that say nothing."
        )
    low, high = (
        np.concatenate(
            [np.full(one.dims, one.range[end] if one.range else bound) for one in parts]
        ).astype(np.float32)
        for end, bound in ((0, -np.inf), (1, np.inf))
    )
    return spaces.Box(low, high)


def _seed_anew(benchmark: Any) -> None:
    """Seed an env that is kept from the episode before as its class did when it made it. The
    generators of the process are the trial's already."""
    env, seed = getattr(benchmark, "_env", None), getattr(benchmark, "env_seed", None)
    if env is not None and seed is not None and hasattr(env, "seed"):
        env.seed(seed)
