"""The suite `vla-eval:BENCHMARK[:CONFIG]`: a benchmark class of the package vla-eval, such as
`vla-eval:libero` or `vla-eval:libero:configs/libero_goal.yaml`, or any class of its kind by
`vla-eval:package.module:Class`.

Their `step` draws pictures itself, so that every step costs its frames, wherever nobody looks. An
observation is made as often as vla-eval's own loop makes one: some of their benchmarks count them.
Their LIBERO seeds once and goes on drawing where fixtures stand, so that an episode depends on
those before it; here whatever draws is seeded anew for each trial.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import random
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
import yaml
from gymnasium import spaces

from hocket import errors
from hocket.adapters.envs import compiled, vla_eval_stage
from hocket.core import codec
from hocket.core.contracts.env import Bridge
from hocket.core.data import Array
from hocket.core.plugins import did_you_mean
from hocket.core.settings import check_among, check_at_least, json_object
from hocket.core.specs import TaskInfo
from hocket.errors import ConfigError, EnvError, RunFolderError, UnknownNameError
from hocket.system.bounded_yaml import load_yaml
from hocket.system.json_file import plain, read_json, write_json
from hocket.workers.env import gl
from hocket.workers.suites import find_task

_LIMIT = 300
"""Steps of an episode where a benchmark does not say, as vla-eval has it."""
_GONE_S = 10.0
"""Seconds in which a container that is gone takes its worker with it, so that no more attempts are
lost to it."""
_CONDA = {
    "behavior1k": "behavior",
    "libero_plus": "libero",
    "libero_pro": "libero",
    "robocerebra": "libero",
    "robodojo": "RoboDojo",
}
"""Environments of conda in vla-eval's images, where they are not called as the benchmark is."""
_LACKS = {
    "robocasa": "robocasa 0.2 on robosuite 1.5, and 10 GB of kitchens, which `python "
    "robocasa/scripts/download_kitchen_assets.py` gets in a clone of robocasa",
    "robotwin": "RoboTwin in /app/RoboTwin, and its objects, which `python _download.py` gets in "
    "its folder assets, to be unzipped there",
    "calvin": "calvin_env and calvin_agent, and the data that dataset_path names in --env.params, "
    "which `sh download_data.sh D` gets in CALVIN's folder dataset",
}
"""What the best known benchmarks need, with the commands that get it."""


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
    link: str = ""
    """The socket of a vla_eval_stage.py that runs the benchmark in a Python of its own."""

    def __post_init__(self) -> None:
        json_object("params", self.params)
        check_at_least(self, max_steps=1, action_size=1)
        check_among(self, graphics=("auto", "gpu", "cpu"))


class FarStage:
    """A Stage behind a socket."""

    def __init__(self, path: str) -> None:
        self._stream = socket.socket(socket.AF_UNIX)
        try:
            self._stream.connect(path)
        except OSError as exc:
            time.sleep(_GONE_S if isinstance(exc, ConnectionError) else 0.0)
            raise EnvError(f"Nobody runs vla-eval's benchmarks at {path}: {exc}.") from exc

    def __del__(self) -> None:
        self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return partial(self._request, name)

    def _request(self, *request: Any) -> Any:
        self._stream.sendall(vla_eval_stage.pack(request))
        frame = vla_eval_stage.receive(self._stream)
        if not frame:
            time.sleep(_GONE_S)
            raise ConnectionError("it has ended")
        told = codec.unpack(frame)
        if "error" in told:
            raise vla_eval_stage.StageError(*told["error"])
        return told["answer"]


class VlaEvalBenchmark:
    """The tasks of one benchmark. Trial n of a task is vla-eval's episode n, counted round where
    the benchmark has only so many."""

    Config: ClassVar = VlaEvalEnvConfig
    tasks_need_simulator: ClassVar = True
    prepare_worker = staticmethod(gl.set_worker)

    def __init__(self, argument: str, config: VlaEvalEnvConfig) -> None:
        self._config = config
        self._name, params = _read(argument)
        self.params = {**params, **json_object("params", config.params)}
        self._stage: Any = None
        self._says: dict[str, Any] = {}
        self._names: list[str] = []

    @staticmethod
    def bridge(argument: str) -> Bridge:
        """In an image of vla-eval's, the class runs in the environment of conda that is there."""
        name = _read(argument)[0]
        words = ("conda", "run", "--no-capture-output", "-n", _CONDA.get(name, name), "python")
        return Bridge(program=vla_eval_stage.__file__, python=() if ":" in name else words)

    def tasks(self) -> tuple[TaskInfo, ...]:
        self._open()
        limit = int(self._config.max_steps or self._says["max_steps"] or _LIMIT)
        prompts: dict[str, str] = {}
        for name in self._names:
            prompts[_unused(name, prompts)] = name
        return tuple(
            TaskInfo(name=name, prompt=prompt, max_steps=limit, success_rule="final")
            for name, prompt in prompts.items()
        )

    def make(self, task: str) -> gymnasium.Env[Any, Any]:
        tasks = self.tasks()
        index = tasks.index(find_task("vla-eval", tasks, task))
        env = VlaEvalEnv(self._ask, index, str(self._says["class"]))
        env.facts["params"] = json.dumps(self.params)
        env.action_space = _actions(self._says, self._config.action_size)
        return env

    def _open(self) -> None:
        """Make the benchmark, once in each worker: their classes keep an env for all episodes."""
        if self._names:
            return
        self._stage = FarStage(self._config.link) if self._config.link else vla_eval_stage.Stage()
        self._says = self._ask("open", self._name, self.params, self._config.graphics)
        plan = self._says["plan"]
        self._names = self._planned(plan) if plan else self._ask("listed")[0]
        if not self._names:
            raise ConfigError(f"vla-eval:{self._name} has no tasks as {self.params} configure it.")

    def _planned(self, plan: str) -> list[str]:
        """The tasks that a planner found once, kept while nothing changes that they depend on."""
        said = json.dumps([self._name, self.params, plan], sort_keys=True)
        folder = compiled.cache_folder().with_name("tasks")
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{_digest(said)[:32]}.json"
        with open(file.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of workers that come at once, one plans
            with contextlib.suppress(RunFolderError, KeyError, TypeError):
                kept = read_json(file)
                if kept["digest"] == _digest(kept["tasks"]):
                    return list(self._ask("listed", json.loads(kept["tasks"]))[0])
            names, tasks = self._ask("listed")
            text = json.dumps(plain(tasks))
            write_json(file, {"digest": _digest(text), "tasks": text})
            return list(names)

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Have the stage do something. Its errors are ours; a process that is gone is let go of, so
        that the next attempt has another."""
        try:
            return getattr(self._stage, name)(*arguments)
        except NotImplementedError as exc:
            raise EnvError(str(exc)) from exc
        except vla_eval_stage.StageError as exc:
            kind, text, *meant = exc.args
            raise self._error(kind, text, *meant) from exc
        except ConnectionError as exc:
            self._names = []
            raise EnvError(f"The process with the benchmark is gone: {exc}.") from exc

    def _error(
        self, kind: str, text: str, wanted: str = "", known: Sequence[str] = ()
    ) -> Exception:
        if kind == "Lacks":
            told = f" It needs {_LACKS[self._name]}." if self._name in _LACKS else ""
            return ConfigError(
                f"vla-eval:{self._name} needs {text}, which this interpreter lacks.{told} Name one "
                "that has it and vla-eval, --env-python PATH, or an image, --runtime docker:IMAGE."
            )
        if known:
            text += f"{did_you_mean(wanted, known)} It has: {', '.join(known)}."
        return errors.from_name(kind, text) or EnvError(text)


class VlaEvalEnv(gymnasium.Env[Any, Any]):
    """One task, over a benchmark that other tasks of the worker use after it. It can be stepped
    without being observed, though what is not looked at was drawn all the same."""

    def __init__(self, ask: Callable[..., Any], index: int, benchmark: str) -> None:
        self._ask, self._index, self._benchmark = ask, index, benchmark
        self._prompt = ""
        self.facts = {"benchmark": benchmark}
        self.notes = ("vla-eval draws pictures at every step, so that chunks save no frames here.",)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        # The process that draws may be another one: it is seeded from this one's generator.
        self._ask("reset", self._index, seed or 0, random.getrandbits(64))
        self._prompt = ""
        return self.observe(), {}

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        reward, done, cut, told = self.advance(action)
        return self.observe(), reward, done, cut, told

    def advance(self, action: Array) -> tuple[float, bool, bool, dict[str, Any]]:
        reward, done, told = self._ask("step", np.asarray(action, np.float32).tolist())
        if "success" not in told:
            raise EnvError(f"{self._benchmark} tells no success at the end of an episode.")
        return reward, done, False, told

    def observe(self) -> dict[str, Any]:
        seen: dict[str, Any] = self._ask("observe")
        prompt = seen["prompt"]
        if self._prompt and prompt != self._prompt:
            raise EnvError(
                f"{self._benchmark} says something else to do in the middle of an episode "
                f"({self._prompt!r}, then {prompt!r}): hocket's episodes have one prompt."
            )
        self._prompt = prompt
        return seen

    def hold_action(self, last: Array | None) -> Array:
        """What the benchmark sends while a model thinks; most of them do not say."""
        held: Array = self._ask("hold", None if last is None else np.asarray(last).tolist())
        return held

    def close(self) -> None:
        with contextlib.suppress(EnvError):  # a process that is gone has nothing to clean up
            self._ask("close")


def _unused(name: str, taken: Collection[str]) -> str:
    """Tasks of several scenes may be called alike; the second one is `name (2)`."""
    same = [one for one in taken if one == name or one.startswith(f"{name} (")]
    return f"{name} ({len(same) + 1})" if same else name


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


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
    return where == name or where.startswith(f"vla_eval.benchmarks.{name}.")


def _actions(says: Mapping[str, Any], size: int | None) -> spaces.Box:
    """The parts of an action one after the other, each within its range where it has one."""
    parts = says["actions"]
    said = sum(dims for dims, _ in parts)
    if size is not None and said in (0, size):
        return spaces.Box(-np.inf, np.inf, (size,), np.float32)
    if size is not None or said == 0:
        told = f"has actions of {said} numbers" if said else "does not say what moves it"
        raise ConfigError(
            f"{says['class']} {told}: --env.action-size N is for those that say nothing."
        )
    low, high = (
        np.concatenate(
            [np.full(dims, within[end] if within else bound) for dims, within in parts]
        ).astype(np.float32)
        for end, bound in ((0, -np.inf), (1, np.inf))
    )
    return spaces.Box(low, high)
