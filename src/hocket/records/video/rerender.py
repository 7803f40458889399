"""Films ended episodes from their stored states, in workers beside this process.

OpenGL never enters the process that asks. An episode that cannot be filmed costs only itself: its
error is told, and the rest goes on. A worker that dies or hangs is replaced.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Episode
from hocket.core.wire import Failed, Hello, Message, Render, Sealed
from hocket.errors import HocketError, RunFolderError, WorkerFailed
from hocket.records.states import load_states
from hocket.workers.link import Link

_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An ended episode that is to be filmed."""

    episode: Episode
    states: Path
    record: Mapping[str, Any]
    """Asked of the sinks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filmed:
    """What came of a job."""

    job: Job
    files: tuple[str, ...] = ()
    """Relative to the run folder; none where the env has no camera."""
    error: str | None = None
    seconds: float = 0.0
    """That a worker took, the start of it included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderingConfig:
    """How many workers film, and how long they may be silent."""

    workers: int = 1
    start_timeout_s: float = 300.0
    """Until a worker's first frame: it starts, imports and builds before."""
    frame_timeout_s: float = 60.0


def film(
    runtime: Runtime,
    spec: WorkerSpec,
    jobs: Sequence[Job],
    config: RenderingConfig,
    on_filmed: Callable[[Filmed], None] = lambda _: None,
) -> list[Filmed]:
    """Film every job; `on_filmed` is told of each as it ends. Closes the runtime."""
    studio = Studio(runtime, spec, jobs, config, on_filmed)
    try:
        return studio.run()
    finally:
        studio.close()


@dataclass(slots=True)
class Stand:
    """A place for one worker, which does one job at a time."""

    link: Link | None = None
    job: Job | None = None
    live: tuple[str, str] | None = None
    """Suite and task that its worker has built."""
    began: float = 0.0
    steps: int = 0
    moved: float = 0.0
    """When its step counter was last seen to move."""
    is_rolling: bool = field(default=False)
    """Whether the job's first frame was seen."""


class Studio:
    """Gives jobs to workers and hears what comes of them. One thread."""

    def __init__(
        self,
        runtime: Runtime,
        spec: WorkerSpec,
        jobs: Sequence[Job],
        config: RenderingConfig,
        on_filmed: Callable[[Filmed], None],
    ) -> None:
        self._runtime = runtime
        self._spec = spec
        self._config = config
        self._on_filmed = on_filmed
        self._waiting = deque(jobs)
        self._stands = [Stand() for _ in range(max(1, min(config.workers, len(jobs))))]
        self._filmed: list[Filmed] = []
        self._blind: set[tuple[str, str]] = set()
        """Tasks whose env turned out to have no camera."""

    def run(self) -> list[Filmed]:
        while self._waiting or any(stand.job for stand in self._stands):
            for stand in self._stands:
                while stand.job is None and self._waiting:
                    self._assign(stand)
            self._wait()
            for stand in self._stands:
                if stand.job is not None:
                    self._hear(stand)
        return self._filmed

    def close(self) -> None:
        for stand in self._stands:
            if stand.link is not None:
                stand.link.kill()
        self._runtime.close()

    def _assign(self, stand: Stand) -> None:
        job = self._next(stand.live)
        now = time.monotonic()
        stand.job, stand.began, stand.moved, stand.is_rolling = job, now, now, False
        trial = job.episode.trial
        if (trial.suite, trial.task) in self._blind:
            self._finish(stand)
            return
        try:
            states = load_states(job.states)
            if stand.link is None:
                stand.link, stand.live = self._runtime.start(self._spec), None
            stand.steps = stand.link.steps(0)
            stand.link.send(
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
            self._finish(stand, error=str(exc))
        except HocketError as exc:
            self._lose(stand, str(exc))
        else:
            stand.live = (trial.suite, trial.task)

    def _next(self, live: tuple[str, str] | None) -> Job:
        """A job of the task that is built already, if there is one, else the first."""
        for place, job in enumerate(self._waiting):
            if (job.episode.trial.suite, job.episode.trial.task) == live:
                del self._waiting[place]
                return job
        return self._waiting.popleft()

    def _wait(self) -> None:
        poller = select.poll()
        for stand in self._stands:
            if stand.job is None or stand.link is None:
                continue
            fd = stand.link.fileno()
            if fd is None:
                return  # `receive` does the work itself
            is_sent = stand.link.flush()
            poller.register(fd, select.POLLIN if is_sent else select.POLLIN | select.POLLOUT)
        poller.poll(_POLL_S * 1000)

    def _hear(self, stand: Stand) -> None:
        assert stand.link is not None
        try:
            for message in stand.link.receive():
                self._take(stand, message)
            self._watch(stand)
        except WorkerFailed as exc:
            self._lose(stand, str(exc))

    def _take(self, stand: Stand, message: Message) -> None:
        if isinstance(message, Sealed):
            if not message.files and stand.live is not None:
                self._blind.add(stand.live)
            self._finish(stand, files=tuple(message.files))
        elif isinstance(message, Failed):
            # After an error a worker may be in any state but the right one.
            text = f"{message.kind}: {message.message}\n{message.traceback}".rstrip()
            self._lose(stand, text)
        elif not isinstance(message, Hello):
            self._lose(stand, f"WireError: a worker that films said {type(message).__name__}.")

    def _watch(self, stand: Stand) -> None:
        if stand.job is None or stand.link is None:
            return
        now, steps = time.monotonic(), stand.link.steps(0)
        if steps != stand.steps:
            stand.steps, stand.moved, stand.is_rolling = steps, now, True
        config = self._config
        limit = config.frame_timeout_s if stand.is_rolling else config.start_timeout_s
        if now - stand.moved > limit:
            raise WorkerFailed(f"A worker made no frame for {now - stand.moved:.0f} s.")

    def _lose(self, stand: Stand, error: str) -> None:
        if stand.link is not None:
            stand.link.kill()
        stand.link = stand.live = None
        if stand.job is not None:
            self._finish(stand, error=error)

    def _finish(
        self, stand: Stand, *, files: tuple[str, ...] = (), error: str | None = None
    ) -> None:
        assert stand.job is not None
        seconds = time.monotonic() - stand.began
        filmed = Filmed(job=stand.job, files=files, error=error, seconds=seconds)
        stand.job = None
        self._filmed.append(filmed)
        self._on_filmed(filmed)
