"""Runs a policy on threads of its own, so that the engine's loop never waits for it.

A policy that allows K calls at once has K threads, and each replica on a device has its own. A
batch that takes less time than waking a thread may be answered by the owner's own (`at_once`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from hocket.core.contracts.policy import Policy
from hocket.core.data import UNCHECKED, Array, RowChecks
from hocket.engine.policy_thread import Answered, Job, PolicyThread, keeps_state
from hocket.engine.row_checks import compare_copies

BRIEF_S = 150e-6
"""Seconds that it costs, about, to wake a thread and be woken by it, measured by hand. Batches as
brief as this are answered by the thread that asks. Without it `overhead.py` at 8 lanes pays for a
thread that wakes for every batch."""
_STRIKES = 3
"""Calls in a row that were ten times as long, after which a policy is not called brief again. One
alone may be the machine's. Chosen by hand, with no benchmark row."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WarmedUp:
    """A policy has seen every batch size once; `latencies`: the slowest replica's seconds."""

    queue: Hashable
    latencies: dict[int, float]
    error: Exception | None
    checks: RowChecks = UNCHECKED
    """Whether the row's bits were the same in every size, at every index and on every replica."""


class Inference:
    """The threads of a policy. Owned by one thread, which submits jobs and takes answers."""

    def __init__(
        self, policies: Sequence[Policy], names: Sequence[str], *, one_at_a_time: bool = False
    ) -> None:
        """`names` are told with the chunks. `one_at_a_time` lets no call run beside another,
        whatever the policy allows: whoever answers cannot put rows of two calls together."""
        self._policies = tuple(policies)
        self._names = tuple(names)
        self.has_sessions = keeps_state(policies[0])
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
            for _ in range(1 if one_at_a_time else policy.spec.concurrency):
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
        first: Array | None = None
        checks = UNCHECKED
        try:
            for policy, name in zip(self._policies, self._names, strict=True):
                own = PolicyThread(policy, name)
                for size in sizes:
                    timed = own.time(job, size)
                    latencies[size] = max(latencies.get(size, 0.0), timed.seconds)
                    if first is None:
                        first = timed.answers[0]
                    else:
                        checks += compare_copies(first, timed.answers)
        except Exception as exc:  # noqa: BLE001 - told with the answer; rows then err themselves
            error = exc
        self._answers.append(
            WarmedUp(queue=job.queue, latencies=latencies, error=error, checks=checks)
        )
        self._wake()
