"""Renders ended episodes from their stored states, in workers beside this process.

OpenGL never enters the process that asks. An episode that cannot be rendered costs only itself: its
error is told, and the rest goes on. A worker that dies or hangs is replaced.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hocket.core.contracts.link import Link
from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Array, Episode
from hocket.core.wire import Failed, Hello, Message, Render, Sealed
from hocket.errors import HocketError, RunFolderError, WorkerFailed
from hocket.workers.fleet import Borrowed

_POLL_S = 0.2
"""How often silent workers are looked at, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderJob:
    """An ended episode that is to be rendered."""

    episode: Episode
    states: Callable[[], Array | None]
    """Loads the simulator's states `[steps + 1, S]`."""
    record: Mapping[str, Any]
    """What is asked of the sinks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """What came of a job."""

    job: RenderJob
    files: tuple[str, ...] = ()
    """Relative to the run folder; none where the env has no camera."""
    error: str | None = None
    seconds: float = 0.0
    """How long a worker took, its start included."""


@dataclass(slots=True)
class VideoWorker:
    """One worker, or none while it is to be started anew, and the job that it does."""

    link: Link | None = None
    lent: Borrowed | None = None
    """What the link was borrowed as."""
    job: RenderJob | None = None
    live: tuple[str, str] | None = None
    """The suite and the task whose env is built."""
    began: float = 0.0
    steps: int = 0
    moved: float = 0.0
    """When the step counter was last seen to move, on the monotonic clock."""
    has_frame: bool = False
    """True if the job's first frame was seen."""


class VideoWorkers:
    """Gives jobs to workers and hears what comes of them, in the caller's thread; `on_rendered` is
    told of each as it ends. Workers that are `warm` are taken before others are started, in a
    runtime that is built and closed here."""

    def __init__(
        self,
        build_runtime: Callable[[], Runtime],
        spec: WorkerSpec,
        jobs: Sequence[RenderJob],
        on_rendered: Callable[[Rendered], None] = lambda _: None,
        *,
        workers: int = 1,
        warm: Sequence[Borrowed] = (),
        start_timeout_s: float = 300.0,
        frame_timeout_s: float = 60.0,
    ) -> None:
        """`start_timeout_s`: longest until a worker's first frame, before which it starts, imports
        and builds; `frame_timeout_s`: longest until the next."""
        self._build_runtime = build_runtime
        self._runtime: Runtime | None = None
        self._spec = spec
        self._start_timeout_s, self._frame_timeout_s = start_timeout_s, frame_timeout_s
        self._on_rendered = on_rendered
        self._waiting = deque(jobs)
        count = max(1, min(workers, len(jobs)))
        self._workers = [
            VideoWorker(link=lent.link, lent=lent, live=lent.live) for lent in warm[:count]
        ]
        self._workers += [VideoWorker() for _ in range(count - len(self._workers))]
        self._rendered: list[Rendered] = []
        self._without_camera: set[tuple[str, str]] = set()
        """The tasks whose env turned out to have no camera."""

    def run(self) -> list[Rendered]:
        """Render every job, once. Workers that broke, or are in the middle of a job when this is
        interrupted, are ended."""
        try:
            while self._waiting or any(worker.job for worker in self._workers):
                self._turn()
            return self._rendered
        finally:
            for worker in self._workers:
                if worker.job is not None or worker.lent is None:
                    self._end(worker)
            if self._runtime is not None:
                self._runtime.close()

    def _turn(self) -> None:
        for worker in self._workers:
            while worker.job is None and self._waiting:
                self._assign(worker)
        self._wait()
        for worker in self._workers:
            if worker.job is not None:
                self._hear(worker)

    def _start(self) -> Link:
        if self._runtime is None:
            self._runtime = self._build_runtime()
        return self._runtime.start(self._spec)

    def _end(self, worker: VideoWorker) -> None:
        if worker.lent is not None:
            worker.lent.end()
        elif worker.link is not None:
            worker.link.kill()
        worker.link = worker.lent = worker.live = None

    def _assign(self, worker: VideoWorker) -> None:
        job = self._next(worker.live)
        now = time.monotonic()
        worker.job, worker.began, worker.moved, worker.has_frame = job, now, now, False
        trial = job.episode.trial
        if (trial.suite, trial.task) in self._without_camera:
            self._finish(worker)
            return
        try:
            states = job.states()
            if states is None:
                raise RunFolderError(f"The states of {trial.id} are gone.")
            if worker.link is None:
                worker.link, worker.live = self._start(), None
            worker.steps = worker.link.steps(0)
            worker.link.send(
                Render(
                    0,
                    job.episode.attempt,
                    (trial.suite, trial.task, trial.seed, trial.repeat),
                    job.episode.outcome.value,
                    len(states),
                    states.astype("<f8").tobytes(),
                    job.record,
                )
            )
        except RunFolderError as exc:
            self._finish(worker, error=str(exc))
        except HocketError as exc:
            self._lose(worker, str(exc))
        else:
            worker.live = (trial.suite, trial.task)

    def _next(self, live: tuple[str, str] | None) -> RenderJob:
        """A job of the task that is built already, if there is one, else the first."""
        for index, job in enumerate(self._waiting):
            if (job.episode.trial.suite, job.episode.trial.task) == live:
                del self._waiting[index]
                return job
        return self._waiting.popleft()

    def _wait(self) -> None:
        poller = select.poll()
        for worker in self._workers:
            if worker.job is None or worker.link is None:
                continue
            fd = worker.link.fileno()
            if fd is None:
                return  # `receive` does the work itself
            is_sent = worker.link.flush()
            poller.register(fd, select.POLLIN if is_sent else select.POLLIN | select.POLLOUT)
        poller.poll(_POLL_S * 1000)

    def _hear(self, worker: VideoWorker) -> None:
        assert worker.link is not None
        try:
            for message in worker.link.receive():
                self._take(worker, message)
            self._watch(worker)
        except WorkerFailed as exc:
            self._lose(worker, str(exc))

    def _take(self, worker: VideoWorker, message: Message) -> None:
        if isinstance(message, Sealed):
            if not message.files and worker.live is not None:
                self._without_camera.add(worker.live)
            self._finish(worker, files=tuple(message.files))
        elif isinstance(message, Failed):
            # After an error a worker may be in any state but the right one.
            text = f"{message.message}\n{message.traceback}".rstrip()
            self._lose(worker, text)
        elif not isinstance(message, Hello):  # one that was borrowed said it before
            self._lose(worker, f"WireError: a worker that renders said {type(message).__name__}.")

    def _watch(self, worker: VideoWorker) -> None:
        if worker.job is None or worker.link is None:
            return
        now, steps = time.monotonic(), worker.link.steps(0)
        if steps != worker.steps:
            worker.steps, worker.moved, worker.has_frame = steps, now, True
        limit = self._frame_timeout_s if worker.has_frame else self._start_timeout_s
        if now - worker.moved > limit:
            raise WorkerFailed(f"A worker made no frame for {now - worker.moved:.0f} s.")

    def _lose(self, worker: VideoWorker, error: str) -> None:
        self._end(worker)
        if worker.job is not None:
            self._finish(worker, error=error)

    def _finish(
        self, worker: VideoWorker, *, files: tuple[str, ...] = (), error: str | None = None
    ) -> None:
        assert worker.job is not None
        seconds = time.monotonic() - worker.began
        rendered = Rendered(job=worker.job, files=files, error=error, seconds=seconds)
        worker.job = None
        self._rendered.append(rendered)
        self._on_rendered(rendered)
