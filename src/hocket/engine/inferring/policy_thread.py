"""One thread's calls of one policy: rows are stacked, the policy is called, its answer checked."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hocket.core.arrays import as_numpy
from hocket.core.contracts.policy import PREFIX, Policy, ReadsDevice, Sessions
from hocket.core.data import (
    UNCHECKED,
    Actions,
    Array,
    Batch,
    Chunk,
    Chunks,
    Observation,
    Row,
    RowChecks,
)
from hocket.engine.chunk_rules import check_answer
from hocket.engine.inferring.deadline import NeverReturned
from hocket.engine.inferring.row_checks import compare_rows
from hocket.errors import (
    ChunkShapeError,
    ChunkValueError,
    HocketError,
    PolicyError,
    PolicyUnavailableError,
    StateMovedError,
)
from hocket.system.text import account as account_of
from hocket.system.text import frames, sentence

_LOG = logging.getLogger(__name__)

BUFFERED_QUEUES = 32
"""Queues whose buffers a thread keeps: those of others are made again for each batch. A server's
clients may send kinds of observation without end."""


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
    other: Sequence[int] = ()
    """Indices of the rows as they are inferred once more, to compare their bits; none for most."""
    expected_s: float = 0.0
    """How long such a batch usually takes."""

    @property
    def size(self) -> int:
        """Rows that the policy works on, padding included."""
        return max(self.pad_to, len(self.rows))


class Answered(NamedTuple):
    """What became of a job; `chunks[i]` or `errors[i]` belongs to row i."""

    job: Job
    began: float
    ended: float
    chunks: Sequence[Chunk | None]
    """A `Chunks` where nothing went wrong."""
    errors: Sequence[Exception | None]
    observations: Mapping[str, Array] | None = None
    blameless: bool = False
    """No row is known to be at fault: its attempts begin anew and spend no retry."""
    checks: RowChecks = UNCHECKED


def keeps_state(policy: Policy) -> bool:
    """True if a policy keeps state for attempts. One that is asked over a wire has the methods of
    Sessions whatever answers there, and says with `is_stateful`."""
    return isinstance(policy, Sessions) and bool(getattr(policy, "is_stateful", True))


class Timed(NamedTuple):
    """What came of a batch that holds one row many times."""

    seconds: float
    first_s: float
    """Seconds of the first call, which may have compiled."""
    answers: Array
    """The actions `[B, T, A]`: the same B times over, where the row's bits do not depend on its
    batch."""


class PolicyThread:
    """Calls one policy from one thread: stacks rows, calls, checks. A batch that raises is halved
    until the rows that raise stand alone, so that one bad row costs one row; but where the policy
    keeps state, which the call may have moved, nothing is asked twice."""

    def __init__(self, policy: Policy, name: str) -> None:
        self._policy = policy
        self._sessions = policy if isinstance(policy, Sessions) else None
        self._keeps_state = keeps_state(policy)
        self._reads_device = isinstance(policy, ReadsDevice) and policy.reads_device_arrays
        self._name = name
        self._buffers: dict[Hashable, dict[str, Array]] = {}

    def end_session(self, session: str) -> None:
        """End a session of the policy; its attempt is over, so an error there is only logged."""
        if self._sessions is None:
            return
        try:
            with words():
                self._sessions.end_session(session)
        except Exception as error:  # noqa: BLE001 - a policy of a user's may raise anything
            _LOG.warning("Policy %r cannot end %s: %s", self._name, session, account(error))

    def answer(self, job: Job) -> Answered:
        """Run one job to its end; errors of the policy become errors of rows."""
        began = time.perf_counter()
        errors: list[Exception | None] = [None] * len(job.rows)
        if self._sessions is not None:
            self._begin_sessions(self._sessions, job, errors)
        chunks: Sequence[Chunk | None]
        if not any(errors):
            chunks = self._infer(job, 0, errors)
        else:
            chunks = [
                None if error is not None else self._infer(_pick(job, [i]), i, errors)[0]
                for i, error in enumerate(errors)
            ]
        ended = time.perf_counter()
        checks = UNCHECKED
        if job.other and isinstance(chunks, Chunks):
            # The second call must not write over what the first returned.
            chunks = Chunks(np.array(chunks.actions), chunks.version, chunks.source, chunks.extras)
            checks = self._check(job, chunks.actions)
        if None not in errors or len(self._buffers) > 1:
            self._keep_buffers(job.queue, was_served=None in errors)
        return Answered(
            job=job,
            began=began,
            ended=ended,
            chunks=chunks,
            errors=errors,
            observations=_kept(job) if job.keep else None,
            blameless=errors[0] is not None
            and all(isinstance(error, StateMovedError) for error in errors),
            checks=checks,
        )

    def _keep_buffers(self, queue: Hashable, *, was_served: bool) -> None:
        """Keep the buffers of the queues that were served last, and of no others."""
        buffers = self._buffers.pop(queue, None)
        if buffers is not None and was_served:
            self._buffers[queue] = buffers
            while len(self._buffers) > BUFFERED_QUEUES:
                del self._buffers[next(iter(self._buffers))]

    def _check(self, job: Job, answered: Array) -> RowChecks:
        """Infer rows again as `job.other` says; one that cannot be is no check."""
        try:
            again = self._call(_pick(job, job.other)).values
            return compare_rows(answered, again, job.other)
        except Exception as error:  # noqa: BLE001 - the rows have their answers
            _LOG.warning("Policy %r cannot be asked again: %s", self._name, account(error))
            return UNCHECKED

    def _begin_sessions(self, sessions: Sessions, job: Job, errors: list[Exception | None]) -> None:
        """Tell a policy that keeps state of new attempts, and note the error of each that it
        refused."""
        for i, row in enumerate(job.rows):
            try:
                if row.chunk == 0:
                    with words():
                        sessions.begin_session(row)
            except Exception as error:  # noqa: BLE001 - it is that row's
                errors[i] = error

    def _infer(
        self, job: Job, start: int, errors: list[Exception | None]
    ) -> Sequence[Chunk | None]:
        """The chunks of a job's rows, which are those from `start` on of a batch; None where a row
        has one of the batch's `errors`."""
        try:
            actions = self._call(job)
        except Exception as exc:  # noqa: BLE001 - any error of a user's policy is its row's
            rows = len(job.rows)
            # The whole answer is wrong, or nobody answers: halves would fare no better.
            is_whole = isinstance(exc, (ChunkShapeError, ChunkValueError, PolicyUnavailableError))
            if is_whole or self._keeps_state or rows == 1:
                told = exc if is_whole or rows == 1 else _lost_state(exc, rows)
                errors[start : start + rows] = [told] * rows
                return [None] * rows
            middle = rows // 2
            first = self._infer(_pick(job, range(middle)), start, errors)
            second = self._infer(_pick(job, range(middle, rows)), start + middle, errors)
            return [*first, *second]
        source = actions.source or self._name
        return Chunks(actions.values, actions.version or 0, source, actions.extras)

    def _call(self, job: Job) -> Actions:
        rows = len(job.rows)
        size = max(job.pad_to, rows)
        arrays = self._stack(job, size) if job.stacked is None else self._select(job, rows, size)
        batch = Batch(arrays=arrays, rows=job.rows, pad=size - rows)
        try:
            answer = self._policy.infer(batch)
        except (KeyboardInterrupt, NeverReturned):
            raise
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, KeyError):
                raise
            raise PolicyError(account(error, arrays)) from error
        return check_answer(
            answer,
            rows=rows,
            size=size,
            action_size=job.action_size,
            chunk_length=self._policy.spec.chunk_length,
            name=self._name,
        )

    def _select(self, job: Job, count: int, size: int) -> dict[str, Array]:
        """Rows of arrays that came stacked, moved to the host for policies that read only there."""
        arrays = {}
        for key, array in (job.stacked or {}).items():
            rows = array if self._reads_device else as_numpy(array)
            arrays[key] = rows if size == count else rows[np.minimum(np.arange(size), count - 1)]
        return arrays

    def _stack(self, job: Job, size: int) -> dict[str, Array]:
        views, count = job.views, len(job.views)
        buffers = self._buffers.get(job.queue)
        prefix = views[0].get(PREFIX)
        if prefix is not None and buffers and buffers[PREFIX].shape[1:] != prefix.shape:
            buffers = None  # A policy's own space need not be as wide as the env's.
        if buffers is None or len(next(iter(buffers.values()), ())) < size:
            buffers = {
                key: np.empty((size, *view.shape), view.dtype) for key, view in views[0].items()
            }
            self._buffers[job.queue] = buffers
        arrays = {}
        for key, buffer in buffers.items():
            for row, view in enumerate(views):  # `np.stack` is several times slower on small arrays
                buffer[row] = view[key]
            buffer[count:size] = buffer[count - 1]
            arrays[key] = buffer[:size]
        return arrays

    def time(self, job: Job, size: int) -> Timed:
        """Time the job's first row in a batch of `size`, after a call that may compile."""
        row = replace(job.rows[0], session=f"{job.rows[0].session} warm-up@{size}")
        full = _pick(job, [0] * size)._replace(rows=(row,) * size)
        if self._sessions is not None:
            with words():
                self._sessions.begin_session(row)
        fastest = float("inf")
        for call in range(4):
            start = time.perf_counter()
            answer = self._call(full)
            took = time.perf_counter() - start
            if not call:
                first_s = took
            else:
                fastest = min(fastest, took)
            if fastest < float("inf") and took > 0.02:
                break
        if self._sessions is not None:
            self._sessions.end_session(row.session)
        return Timed(fastest, first_s, np.array(answer.values))


def _pick(job: Job, indices: Sequence[int]) -> Job:
    """The same with these rows only, some perhaps more than once."""
    rows = [job.rows[index] for index in indices]
    if job.stacked is None:
        return job._replace(rows=rows, views=[job.views[index] for index in indices])
    stacked = {key: array[np.array(indices)] for key, array in job.stacked.items()}
    return job._replace(rows=rows, stacked=stacked)


def _lost_state(error: Exception, rows: int) -> StateMovedError:
    lost = StateMovedError(
        f"The policy raised {sentence(error)} for a batch of {rows} rows, and may "
        "have moved on what it keeps for each of them."
    )
    lost.__cause__ = error
    return lost


def _kept(job: Job) -> dict[str, Array]:
    """The rows' observations in arrays of their own: buffers serve the next batch."""
    if job.stacked is not None:
        return {key: np.array(as_numpy(array)) for key, array in job.stacked.items()}
    return {key: np.stack([view[key] for view in job.views]) for key in job.views[0]}


@contextlib.contextmanager
def words() -> Iterator[None]:
    """What a policy raises here, sys.exit too, comes as a PolicyError."""
    try:
        yield
    except (HocketError, KeyboardInterrupt, NeverReturned):
        raise
    except BaseException as error:
        raise PolicyError(account(error)) from error


def account(error: BaseException, batch: Iterable[str] = ()) -> str:
    """What a policy raised, for whoever wrote it; of a missing key, which there are in its
    `batch`."""
    if isinstance(error, HocketError):
        return account_of(error)
    is_key = isinstance(error, KeyError) and batch
    keys = f". The keys of its batch are: {', '.join(sorted(batch))}." if is_key else ""
    text = f"The policy raised {sentence(error)}{keys}\n{frames(error)}"
    return text.rstrip()
