"""Runs a policy on threads of its own, so that the engine's loop never waits for it.

A policy that allows K calls at once has K threads, and each replica on a device has its own. A
batch that takes less time than waking a thread may be answered by the owner's own (`at_once`). A
batch that raises is halved until the rows that raise stand alone: one bad row costs one row.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hocket.core.arrays import as_numpy
from hocket.core.contracts.policy import Policy, ReadsDevice, Sessions
from hocket.core.data import Actions, Array, Batch, Chunk, Chunks, Observation, Row
from hocket.engine.chunk_rules import check_answer, finite_rows
from hocket.errors import (
    ChunkShapeError,
    ChunkValueError,
    HocketError,
    PolicyUnavailableError,
)

_LOG = logging.getLogger(__name__)

BRIEF_S = 150e-6
"""Seconds that it costs, about, to wake a thread and be woken by it, measured by hand. Batches as
brief as this are answered by the thread that asks. Without it `overhead.py` at 8 lanes pays for a
thread that wakes for every batch."""
BUFFERED_QUEUES = 32
"""Queues whose buffers a thread keeps: those of others are made again for each batch. A server's
clients may send kinds of observation without end."""
_STRIKES = 3
"""Calls in a row that were ten times as long, after which a policy is not called brief again. One
alone may be the machine's. Chosen by hand, with no benchmark row."""


class Job(NamedTuple):
    """One batch to infer: row i is described by `rows[i]` and observed in `views[i]`.

    Views are read on the policy's thread; the engine keeps them valid by sending no chunk to these
    lanes before the answer. `queue` says which rows may share buffers.
    """

    number: int
    queue: Hashable
    rows: Sequence[Row]
    views: Sequence[Observation]
    action_size: int | None
    stacked: Mapping[str, Array] | None = None
    """All rows' observations `[B, ...]` instead of `views`, perhaps on a device."""
    pad_to: int = 0
    keep: bool = False
    """Give the stacked observations back with the answer."""


class Answered(NamedTuple):
    """What became of a job; `chunks[i]` or `errors[i]` belongs to row i."""

    job: Job
    began: float
    ended: float
    chunks: Sequence[Chunk | None]
    """A `Chunks` where nothing went wrong."""
    errors: Sequence[Exception | None]
    observations: Mapping[str, Array] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WarmedUp:
    """A policy has seen every batch size once; `latencies`: the slowest replica's seconds."""

    queue: Hashable
    latencies: dict[int, float]
    error: Exception | None


class Inference:
    """The threads of a policy. Owned by one thread, which submits jobs and takes answers."""

    def __init__(self, policies: Sequence[Policy], names: Sequence[str]) -> None:
        self._policies = tuple(policies)
        self._names = tuple(names)
        self.has_sessions = isinstance(policies[0], Sessions)
        self.spec = policies[0].spec
        self._jobs: queue.SimpleQueue[Job | str | None] = queue.SimpleQueue()
        self._answers: deque[Answered | WarmedUp] = deque()
        self._wake: Callable[[], None] = lambda: None
        self._threads: list[threading.Thread] = []
        self._own = PolicyThread(policies[0], names[0])
        self._brief: dict[Hashable, int] = {}
        """The largest batch of each queue that is answered at once."""
        self._strikes = 0
        for policy, name in zip(policies, names, strict=True):
            for _ in range(policy.spec.concurrency):
                own = PolicyThread(policy, name)
                thread = threading.Thread(
                    target=self._serve, args=(own,), name=f"hocket-infer-{name}", daemon=True
                )
                self._threads.append(thread)

    @property
    def concurrency(self) -> int:
        return len(self._threads)

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to work; `wake` is called, from a policy's thread, when an answer is there."""
        self._wake = wake
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def at_once(self, job: Job) -> Answered | None:
        """The answer to a job that is done sooner here than on another thread; None for others,
        and for policies that keep state, whose sessions are one thread's."""
        if len(job.rows) > self._brief.get(job.queue, 0):
            return None
        answer = self._own.answer(job)
        self._strikes = self._strikes + 1 if answer.ended - answer.began > 10 * BRIEF_S else 0
        if self._strikes == _STRIKES:
            self._brief = {}
        return answer

    def end_session(self, session: str) -> None:
        """Tell a policy that keeps state that an attempt is over."""
        if self.has_sessions:
            self._jobs.put(session)

    def warm_up(self, job: Job, sizes: Sequence[int]) -> None:
        """Try the job's first row in batches of these sizes on every replica, and time them.

        To be called only while no job is under way. WarmedUp comes among the answers.
        """
        threading.Thread(
            target=self._warm_up, args=(job, sizes), name="hocket-warm-up", daemon=True
        ).start()

    def answers(self) -> list[Answered | WarmedUp]:
        """All answers that have come since the last call."""
        taken = []
        while self._answers:
            answer = self._answers.popleft()
            if isinstance(answer, WarmedUp):
                sizes = [size for size, took in answer.latencies.items() if took <= BRIEF_S]
                is_single = len(self._threads) <= 1 and not self.has_sessions
                is_fit = is_single and answer.error is None
                self._brief[answer.queue] = max(sizes, default=0) if is_fit else 0
            taken.append(answer)
        return taken

    def close(self, timeout_s: float = 1.0) -> None:
        """End the threads; one that is inside a long `infer` is left to finish as a daemon."""
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.perf_counter() + timeout_s
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.perf_counter()))
        self._threads = []

    def _serve(self, own: PolicyThread) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            if isinstance(job, str):
                own.end_session(job)
                continue
            self._answers.append(own.answer(job))
            self._wake()

    def _warm_up(self, job: Job, sizes: Sequence[int]) -> None:
        latencies: dict[int, float] = {}
        error: Exception | None = None
        try:
            for policy, name in zip(self._policies, self._names, strict=True):
                own = PolicyThread(policy, name)
                for size in sizes:
                    latencies[size] = max(latencies.get(size, 0.0), own.time(job, size))
        except Exception as exc:  # noqa: BLE001 - told with the answer; rows then err themselves
            error = exc
        self._answers.append(WarmedUp(queue=job.queue, latencies=latencies, error=error))
        self._wake()


class PolicyThread:
    """Calls one policy from one thread: stacks rows, calls, checks, halves on errors."""

    def __init__(self, policy: Policy, name: str) -> None:
        self._policy = policy
        self._sessions = policy if isinstance(policy, Sessions) else None
        self._reads_device = isinstance(policy, ReadsDevice) and policy.reads_device_arrays
        self._name = name
        self._buffers: dict[Hashable, dict[str, Array]] = {}

    def end_session(self, session: str) -> None:
        """End a session of the policy; its attempt is over, so an error there is only logged."""
        if self._sessions is None:
            return
        try:
            self._sessions.end_session(session)
        except Exception as error:  # noqa: BLE001 - a policy of a user's may raise anything
            _LOG.warning("Policy %r cannot end %s: %s", self._name, session, account(error))

    def answer(self, job: Job) -> Answered:
        """Run one job to its end; errors of the policy become errors of rows."""
        began = time.perf_counter()
        errors = self._begin_sessions(job)
        chunks: Sequence[Chunk | None]
        if not any(errors):
            chunks = self._infer(job, 0, len(job.rows), errors)
        else:
            chunks = [
                None if error is not None else self._infer(job, i, i + 1, errors)[0]
                for i, error in enumerate(errors)
            ]
        self._keep_buffers(job.queue, was_served=None in errors)
        return Answered(
            job=job,
            began=began,
            ended=time.perf_counter(),
            chunks=chunks,
            errors=errors,
            observations=_kept(job) if job.keep else None,
        )

    def _keep_buffers(self, queue: Hashable, *, was_served: bool) -> None:
        """Keep the buffers of the queues that were served last, and of no others."""
        buffers = self._buffers.pop(queue, None)
        if buffers is not None and was_served:
            self._buffers[queue] = buffers
            while len(self._buffers) > BUFFERED_QUEUES:
                del self._buffers[next(iter(self._buffers))]

    def _begin_sessions(self, job: Job) -> list[Exception | None]:
        """Tell a policy that keeps state of new attempts; the error of each that it refused."""
        errors: list[Exception | None] = [None] * len(job.rows)
        if self._sessions is None:
            return errors
        for i, row in enumerate(job.rows):
            try:
                if row.chunk == 0:
                    self._sessions.begin_session(row)
            except Exception as error:  # noqa: BLE001 - it is that row's
                errors[i] = error
        return errors

    def _infer(
        self, job: Job, start: int, stop: int, errors: list[Exception | None]
    ) -> Sequence[Chunk | None]:
        """The chunks of these rows; None where a row has an error."""
        try:
            actions = self._call(job, start, stop)
        except (ChunkShapeError, ChunkValueError, PolicyUnavailableError) as exc:
            # The whole answer is wrong, or nobody answers: halves would fare no better.
            errors[start:stop] = [exc] * (stop - start)
            return [None] * (stop - start)
        except Exception as exc:  # noqa: BLE001 - any error of a user's policy is its row's
            if stop - start == 1:
                errors[start] = exc
                return [None]
            middle = (start + stop) // 2
            first = self._infer(job, start, middle, errors)
            return [*first, *self._infer(job, middle, stop, errors)]
        source = actions.source or self._name
        found = Chunks(actions.values, actions.version or 0, source, actions.extras)
        if np.isfinite(actions.values).all():
            return found
        finite = finite_rows(actions.values)
        chunks: list[Chunk | None] = list(found)
        for i in np.flatnonzero(~finite).tolist():
            chunks[i] = None
            errors[start + i] = ChunkValueError(
                f"Policy {self._name!r} answered trial {job.rows[start + i].trial.id} with NaN "
                f"or infinity. Look at its inputs with `hocket check`."
            )
        return chunks

    def _call(self, job: Job, start: int, stop: int) -> Actions:
        rows = job.rows if stop - start == len(job.rows) else job.rows[start:stop]
        size = max(job.pad_to, len(rows))
        batch = Batch(arrays=self._stack(job, start, stop, size), rows=rows, pad=size - len(rows))
        spec = self._policy.spec
        return check_answer(
            self._policy.infer(batch),
            rows=len(rows),
            size=size,
            action_size=job.action_size,
            chunk_length=spec.chunk_length,
            name=self._name,
        )

    def _select(
        self, stacked: Mapping[str, Array], start: int, stop: int, size: int
    ) -> dict[str, Array]:
        """Rows of arrays that came stacked, moved to the host for policies that read only there."""
        arrays = {}
        for key, array in stacked.items():
            rows = array if self._reads_device else as_numpy(array)
            if start or stop < len(rows):
                rows = rows[start:stop]
            if size > stop - start:
                rows = rows[np.minimum(np.arange(size), stop - start - 1)]
            arrays[key] = rows
        return arrays

    def _stack(self, job: Job, start: int, stop: int, size: int) -> dict[str, Array]:
        if job.stacked is not None:
            return self._select(job.stacked, start, stop, size)
        buffers = self._buffers.get(job.queue)
        if buffers is None or len(next(iter(buffers.values()), ())) < size:
            buffers = {
                key: np.empty((size, *view.shape), view.dtype) for key, view in job.views[0].items()
            }
            self._buffers[job.queue] = buffers
        count = stop - start
        arrays = {}
        for key, buffer in buffers.items():
            for row in range(count):  # `np.stack` takes several times as long for small arrays
                buffer[row] = job.views[start + row][key]
            buffer[count:size] = buffer[count - 1]
            arrays[key] = buffer[:size]
        return arrays

    def time(self, job: Job, size: int) -> float:
        """Seconds for the job's first row in a batch of `size`, after a call that may compile."""
        row = replace(job.rows[0], session=f"{job.rows[0].session} warm-up@{size}")
        full = job._replace(rows=(row,) * size, views=list(job.views[:1]) * size)
        if job.stacked is not None:
            many = {key: array[np.zeros(size, int)] for key, array in job.stacked.items()}
            full = full._replace(stacked=many)
        if self._sessions is not None:
            self._sessions.begin_session(row)
        fastest = float("inf")
        for call in range(4):
            start = time.perf_counter()
            self._call(full, 0, size)
            took = time.perf_counter() - start
            if call:
                fastest = min(fastest, took)
            if fastest < float("inf") and took > 0.02:
                break
        if self._sessions is not None:
            self._sessions.end_session(row.session)
        return fastest


def _kept(job: Job) -> dict[str, Array]:
    """The rows' observations in arrays of their own: buffers serve the next batch."""
    if job.stacked is not None:
        return {key: np.array(as_numpy(array)) for key, array in job.stacked.items()}
    return {key: np.stack([view[key] for view in job.views]) for key in job.views[0]}


def account(error: Exception) -> str:
    """What a policy raised, for whoever wrote it. The traceback from the call on is there, unless
    the error is one of hocket's own, which says all in a sentence."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, HocketError):
        return text
    trace = error.__traceback__
    while trace is not None and trace.tb_next and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    frames = "".join(traceback.format_exception(type(error), error, trace))
    return f"{text}\n{frames}".rstrip()
