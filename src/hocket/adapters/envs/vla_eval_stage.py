"""A benchmark of vla-eval's, stepped as its own loop steps it: in a worker, or beside one, where
another Python has the benchmark.

    python vla_eval_stage.py SOCKET [LIFE]

As a program this file needs Python 3.8 or later, NumPy, msgpack and the benchmark, and nothing of
hocket's. It listens at a path; each connection has a process and a benchmark of its own. All end
when whoever listens at LIFE does. A request is a method of `Stage` and its arguments, the answer
its result, in frames of four bytes of length and msgpack with arrays.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import random
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

_LOOK_MS = 200
_PLANS = {"RoboTwinBenchmark": "_init_robotwin"}
"""Benchmarks whose tasks a planner finds, and what goes before the `fingerprint` of that list."""


class StageError(Exception):
    """The name of an error's class, its text, and a name with those that may have been meant."""


class Stage:
    """One benchmark, made once: their classes keep an env for all episodes."""

    def __init__(self) -> None:
        self._benchmark: Any = None
        self._tasks: list[Any] = []
        self._task: Mapping[str, Any] = {}
        self._episodes: int | None = None
        self._seen: dict[str, Any] = {}

    def open(self, name: str, params: Mapping[str, Any], graphics: str) -> dict[str, Any]:
        """Make the benchmark; give what its class tells of itself."""
        made = find_class(name)
        signature = inspect.signature(made)
        try:
            signature.bind(**params)
            on_gpu = "cpu" not in made.render_backends or os.path.exists("/dev/nvidia0")
            made.configure_render(graphics if graphics != "auto" else ("cpu", "gpu")[on_gpu])
        except (TypeError, NotImplementedError) as exc:
            has = ", ".join(signature.parameters) or "none"
            raise StageError("ConfigError", f"{name}: {exc}. Its arguments: {has}.") from exc
        with _lacking():
            plan, parts, self._benchmark = None, [], made(**params)
            if made.__name__ in _PLANS:
                getattr(self._benchmark, _PLANS[made.__name__])()
                plan = self._benchmark.fingerprint()
            says = dict(self._benchmark.get_metadata())
            with contextlib.suppress(NotImplementedError):
                specs = self._benchmark.get_action_spec().values()
                parts = [[one.dims, one.range] for one in specs]
        self._episodes = says.get("max_episodes_per_task")
        told = {"class": made.__qualname__, "max_steps": says.get("max_steps"), "actions": parts}
        return {**told, "plan": plan}

    def listed(self, known: Any = None) -> list[Any]:
        """The names of their tasks, and where a planner found them the tasks, for `known`."""
        with _lacking():
            self._tasks = known or self._benchmark.get_tasks()
        names = [str(task.get("name", task)) for task in self._tasks]
        return [names, self._tasks if type(self._benchmark).__name__ in _PLANS else None]

    def reset(self, index: int, episode: int, draw: int) -> None:
        """Begin an episode of a task as their `start_episode` does, but for its clock and its
        coroutine; all that draws is seeded for it alone."""
        from vla_eval.benchmarks.base import StepResult
        from vla_eval.recording import NullEpisodeRecorder

        task, benchmark = dict(self._tasks[index]), self._benchmark
        task["episode_idx"] = episode % (self._episodes or episode + 1)
        random.seed(draw)
        np.random.seed(draw & 0xFFFFFFFF)
        # An env that is kept from the episode before is seeded as its class did when it made it.
        env, seed = getattr(benchmark, "_env", None), getattr(benchmark, "env_seed", None)
        if env is not None and seed is not None and hasattr(env, "seed"):
            env.seed(seed)
        benchmark._task, benchmark._recorder = task, NullEpisodeRecorder()
        with _lacking():
            raw = benchmark.reset(task)
        benchmark._last_result = StepResult(obs=raw, reward=0.0, done=False, info={})
        self._task = task
        self._look(raw)

    def step(self, action: Any) -> list[Any]:
        """Make a step; give its reward, whether the episode is over, and what it tells."""
        benchmark = self._benchmark
        result = benchmark.step({"actions": np.array(action, np.float32)})
        benchmark._last_result = result
        done = bool(benchmark.check_done(result))
        if not done:
            self._look(result.obs)
        return [float(result.reward), done, dict(benchmark.get_step_result(result))]

    def observe(self) -> dict[str, Any]:
        """What their model servers are sent; pictures under the names of their cameras."""
        return self._seen

    def _look(self, raw: Any) -> None:
        made = dict(self._benchmark.make_obs(raw, self._task))
        prompt = str(made.pop("task_description", self._task.get("name", "")))
        images = {str(key): np.asarray(one) for key, one in made.pop("images", {}).items()}
        rest = {k: v for k, v in made.items() if isinstance(v, Mapping) or _is_array(v)}
        self._seen = {**rest, **images, "prompt": prompt}

    def hold(self, last: Any) -> Any:
        """What the benchmark sends while a model thinks; most of them do not say."""
        given = None if last is None else {"actions": np.array(last, np.float32)}
        return np.asarray(self._benchmark.get_hold_action(given)["actions"], np.float32)

    def close(self) -> None:
        self._benchmark.cleanup()


@contextlib.contextmanager
def _lacking() -> Any:
    """Tell what is not here of what a benchmark needs."""
    try:
        yield
    except (ImportError, FileNotFoundError) as exc:
        lacks = exc.name if isinstance(exc, ImportError) else exc.filename
        raise StageError("Lacks", str(lacks or exc)) from exc


def find_class(name: str) -> Any:
    """The benchmark class of a folder of vla-eval's, or `module:Class`."""
    module, _, wanted = name.partition(":")
    with _lacking():
        from vla_eval.benchmarks.base import StepBenchmark

        if not wanted:
            package = importlib.import_module("vla_eval.benchmarks")
            names = [path.parent.name for path in Path(package.__path__[0]).glob("*/benchmark.py")]
            if name not in names:
                text = f"vla-eval has no benchmark {name!r}."
                raise StageError("UnknownNameError", text, name, sorted(names))
            module = f"vla_eval.benchmarks.{name}.benchmark"
        found = importlib.import_module(module)
    kinds = [
        one
        for one in vars(found).values()
        if inspect.isclass(one) and issubclass(one, StepBenchmark) and not inspect.isabstract(one)
        if one.__name__ == wanted or (not wanted and one.__module__ == module)
    ]
    if len(kinds) != 1:
        told = ", ".join(one.__name__ for one in kinds) or "none"
        text = (
            f"vla-eval:{name} must name one class that is stepped (StepBenchmark); found: {told}."
        )
        raise StageError("UnknownNameError", text)
    return kinds[0]


def _is_array(value: Any) -> bool:
    with contextlib.suppress(ValueError):  # lists of different lengths
        return np.asarray(value).dtype.kind in "biuf"
    return False


def pack(value: Any) -> bytes:
    body: bytes = msgpack.packb(value, default=_encoded)
    return len(body).to_bytes(4, "little") + body


def _encoded(value: Any) -> Any:
    """Arrays as the other end reads them; of anything else what it says of itself."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
        data = {b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
        return {b"__ndarray__": True, **data}
    return value.item() if isinstance(value, (np.bool_, np.number)) else repr(value)


def receive(stream: socket.socket) -> bytes:
    """One frame; nothing at the end of the stream."""
    size = int.from_bytes(stream.recv(4, socket.MSG_WAITALL), "little")
    return stream.recv(size, socket.MSG_WAITALL) if size else b""


def perform(stream: socket.socket) -> None:
    """Answer requests until the other end is gone."""
    stage = Stage()
    while request := receive(stream):
        try:
            name, *arguments = msgpack.unpackb(request)
            frame = pack({"answer": getattr(stage, name)(*arguments)})
        except BaseException as exc:  # noqa: BLE001 - told to the other end, whatever it is
            told = [type(exc).__name__, traceback.format_exc(limit=-4)]
            frame = pack({"error": exc.args if isinstance(exc, StageError) else told})
        stream.sendall(frame)


def keep(stream: socket.socket) -> None:
    """Have a process answer, until the other end is gone or it is: then both learn of it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        with contextlib.suppress(ConnectionError):  # it was hung up on
            perform(stream)
        os._exit(0)
    poll, ended, status = select.poll(), 0, 0
    poll.register(stream, 0)  # the end of a stream is told, whatever is asked for
    while not ended and not poll.poll(_LOOK_MS):
        ended, status = os.waitpid(pid, os.WNOHANG)
    text = f"The benchmark's process was ended (wait status {status})."
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):  # whoever hung up does not read it
        stream.sendall(pack({"error": ["EnvError", text]}))


def main() -> None:
    sys.path[0] = os.getcwd()  # in place of this file's folder, whose modules are not top-level
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener, life = (socket.socket(socket.AF_UNIX) for _ in range(2))
    poll = select.poll()
    listener.bind(sys.argv[1])
    os.chmod(sys.argv[1], 0o666)
    listener.listen(64)
    poll.register(listener, select.POLLIN)
    for path in sys.argv[2:]:
        life.connect(path)
        poll.register(life, 0)
    while life.fileno() not in dict(poll.poll()):
        stream = listener.accept()[0]
        if os.fork() == 0:
            keep(stream)
            os._exit(0)
        stream.close()


if __name__ == "__main__":
    main()
