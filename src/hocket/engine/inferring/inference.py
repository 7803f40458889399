"""Runs a policy on threads of its own, so that the engine's loop never waits for it.

A policy that allows K calls at once has K threads, and each replica on a device has its own. A
batch that takes less time than waking a thread may be answered by the owner's own (`at_once`).

A thread that hangs cannot be ended. Its replica is never asked again, unless it lives in a process
that can be started anew; what it worked on is given back as nobody's fault.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from math import inf

from hocket.core.contracts.policy import Policy, Restarts
from hocket.core.data import UNCHECKED, Array
from hocket.engine.inferring.deadline import InferDeadline, NeverReturned, Rescue
from hocket.engine.inferring.policy_thread import Answered, Job, PolicyThread, keeps_state
from hocket.engine.inferring.replicas import MoreSizes, Replica, Seat, WarmedUp, WarmUp
from hocket.engine.inferring.row_checks import compare_copies
from hocket.errors import PolicyHungError

_LOG = logging.getLogger(__name__)

BRIEF_S = 150e-6
"""Seconds that it costs, about, to wake a thread and be woken by it. Batches as
brief as this are answered by the thread that asks. Without it `overhead.py` at 8 lanes pays for a
thread that wakes for every batch."""
_STRIKES = 3
"""Calls in a row that were ten times as long, after which a policy is not called brief again. One
alone may be the machine's."""
LEAST_S = 300.0
TIMES_EXPECTED = 100.0
TIMES_FIRST = 10.0
"""Seconds that an `infer` may take at least, how many times what batches of its size usually take,
and how many times the slowest first call for one of a new shape. A policy that is given up too
early costs a run, one that is given up late costs minutes."""
_LOOK_S = 0.25
"""Seconds between two looks for calls that take too long."""
_NAP_S = 5.0
"""Seconds without a look that do not count; the engine looks every second."""
HUNG = "hocket-hung"
"""How the names of threads begin that are left behind inside a policy."""


class Inference:
    """The threads of a policy. Owned by one thread, which submits jobs and takes answers."""

    def __init__(
        self,
        policies: Sequence[Policy],
        names: Sequence[str],
        *,
        one_at_a_time: bool = False,
        deadline: InferDeadline | None = None,
    ) -> None:
        """`names` are told with the chunks. `one_at_a_time` lets no call run beside another,
        whatever the policy allows: whoever answers cannot put rows of two calls together."""
        pairs = zip(policies, names, strict=True)
        self._replicas = [Replica(policy, name) for policy, name in pairs]
        self.has_sessions = keeps_state(policies[0])
        self.restarts = 0
        """Times that a replica was started anew, and forgot its sessions."""
        self._deadline = deadline or InferDeadline()
        self._jobs: queue.SimpleQueue[Job | str | None] = queue.SimpleQueue()
        self._answers: deque[Answered | WarmedUp] = deque()
        # Guards whether a seat is given up: its late answer must not come beside that verdict.
        self._lock = threading.Lock()
        self._wake: Callable[[], None] = lambda: None
        self._seats = [
            Seat(replica)
            for replica in self._replicas
            for _ in range(1 if one_at_a_time else replica.policy.spec.concurrency)
        ]
        self._is_single = len(self._seats) == 1
        self.spec = replace(policies[0].spec, concurrency=len(self._seats))
        """What the policy says of itself, for all copies together."""
        self._looked_at = time.perf_counter()
        self._warming: WarmUp | None = None
        self._own = PolicyThread(policies[0], names[0])
        self._rescue = Rescue()
        self._brief: dict[Hashable, int] = {}
        """The largest batch of each queue that is answered at once."""
        self._strikes = 0

    @property
    def concurrency(self) -> int:
        """The number of calls that may run at once."""
        return len(self._seats)

    @property
    def is_stuck(self) -> bool:
        """True if a policy of this process never returned: to close it might never return."""
        return any(r.is_lost and not isinstance(r.policy, Restarts) for r in self._replicas)

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to work; `wake` is called, from a policy's thread, when an answer is there."""
        self._wake = wake
        for seat in self._seats:
            self._start(seat)

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def at_once(self, job: Job) -> Answered | None:
        """The answer to a job that is done sooner here than on another thread; None for others,
        and for policies that keep state, whose sessions are one thread's."""
        rows = len(job.rows)
        if rows > self._brief.get(job.queue, 0):
            return None
        rescue, replica = self._rescue, self._replicas[0]
        if not rescue.is_watching and not rescue.start(f"Policy {replica.name!r}"):
            self._brief = {}
            return None
        is_new = (job.queue, max(job.pad_to, rows)) not in replica.seen
        waits_s = allowed_s(
            self._deadline, job.expected_s, is_new=is_new, slowest_first_s=replica.slowest_first_s
        )
        rescue.until = time.perf_counter() + waits_s
        try:
            answer = self._own.answer(job)
        except NeverReturned:
            replica.is_lost = True
            raise PolicyHungError(_words(replica, waits_s)) from None
        finally:
            rescue.until = inf
        self._strikes = self._strikes + 1 if answer.ended - answer.began > 10 * BRIEF_S else 0
        if self._strikes == _STRIKES:
            self._brief = {}
        return answer

    def end_session(self, session: str) -> None:
        """Tell a policy that keeps state that an attempt is over."""
        if self.has_sessions:
            self._jobs.put(session)

    def warm_up(self, job: Job, sizes: Sequence[int], more: MoreSizes | None = None) -> None:
        """Try the job's first row in batches of these sizes on every replica, and time them; then
        of those that `more` asks for, for a while.

        To be called only while no job is under way. WarmedUp comes among the answers.
        """
        living = [replica for replica in self._replicas if not replica.is_lost]
        warming = self._warming = WarmUp(job, sizes, more, Seat(living[0]))
        warming.seat.thread = threading.Thread(
            target=self._warm_up, args=(warming, living), name="hocket-warm-up", daemon=True
        )
        warming.seat.thread.start()

    def answers(self) -> list[Answered | WarmedUp]:
        """All answers that have come since the last call, among them those that nobody will give:
        of calls that took too long. Raises PolicyHungError when no replica is left."""
        if (now := time.perf_counter()) - self._looked_at >= _LOOK_S:
            self._look(now)
        if not self._answers:
            return []
        taken = []
        while self._answers:
            answer = self._answers.popleft()
            if isinstance(answer, WarmedUp):
                sizes = [size for size, took in answer.latencies.items() if took <= BRIEF_S]
                is_fit = self._is_single and not self.has_sessions and answer.error is None
                self._brief[answer.queue] = max(sizes, default=0) if is_fit else 0
            taken.append(answer)
        return taken

    def close(self, timeout_s: float = 1.0) -> None:
        """End the threads; one that is inside a long `infer` is left to finish as a daemon."""
        self._rescue.close()
        for _ in self._seats:
            self._jobs.put(None)
        deadline = time.perf_counter() + timeout_s
        for seat in self._seats:
            if seat.thread is not None and seat.thread.is_alive():
                seat.thread.join(max(0.0, deadline - time.perf_counter()))
        self._seats = []

    # -- the policy's threads ------------------------------------------------------------------

    def _start(self, seat: Seat) -> None:
        name = f"hocket-infer-{seat.replica.name}"
        seat.thread = threading.Thread(target=self._serve, args=(seat,), name=name, daemon=True)
        seat.thread.start()

    def _serve(self, seat: Seat) -> None:
        replica = seat.replica
        own = PolicyThread(replica.policy, replica.name)
        while True:
            job = self._jobs.get()
            if job is None:
                return
            if replica.is_lost:
                self._jobs.put(job)  # for a replica that lives
                return
            if isinstance(job, str):
                # The end of a session is never the first call.
                seat.allowed_s = allowed_s(self._deadline, 0.0, is_new=False, slowest_first_s=None)
                seat.began = time.perf_counter()
                own.end_session(job)
                answer = None
            else:
                is_new = (job.queue, job.size) not in replica.seen
                seat.job = job
                seat.allowed_s = allowed_s(
                    self._deadline,
                    job.expected_s,
                    is_new=is_new,
                    slowest_first_s=replica.slowest_first_s,
                )
                seat.began = time.perf_counter()
                answer = own.answer(job)
                replica.answered(job.queue, job.size, answer.ended - answer.began)
            with self._lock:
                if seat.is_hung:
                    return
                seat.began, seat.job = inf, None
                if answer is not None:
                    self._answers.append(answer)
            if answer is not None:
                self._wake()

    def _warm_up(self, warming: WarmUp, replicas: Sequence[Replica]) -> None:
        job, seat = warming.job, warming.seat
        latencies: dict[int, float] = {}
        error: Exception | None = None
        first: Array | None = None
        checks = UNCHECKED
        sizes = list(warming.sizes)
        try:
            for replica in replicas:
                own = PolicyThread(replica.policy, replica.name)
                for size in sizes:  # It grows while the first replica is timed.
                    seat.replica, seat.allowed_s = replica, self._deadline.first_s
                    seat.began = time.perf_counter()
                    timed = own.time(job, size)
                    replica.answered(job.queue, max(job.pad_to, size), timed.first_s)
                    latencies[size] = max(latencies.get(size, 0.0), timed.seconds)
                    if first is None:
                        first = timed.answers[0]
                    else:
                        checks += compare_copies(first, timed.answers)
                    if replica is replicas[0] and size == sizes[-1]:
                        sizes.extend(warming.more_sizes(latencies, time.perf_counter()))
        except Exception as exc:  # noqa: BLE001 - told with the answer; rows then err themselves
            error = exc
        with self._lock:
            if seat.is_hung:
                return
            self._warming = None
            self._answers.append(
                WarmedUp(queue=job.queue, latencies=latencies, error=error, checks=checks)
            )
        self._wake()

    # -- calls that never return ---------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Give up the replicas whose calls have taken too long."""
        since_s, self._looked_at = now - self._looked_at, now
        warming = self._warming
        if since_s > _NAP_S:
            # The process was stopped, or its owner had other work: the policy is not to blame.
            with self._lock:
                for seat in self._seats if warming is None else [*self._seats, warming.seat]:
                    if seat.began < inf:
                        seat.began = min(now, seat.began + since_s)
            return
        if warming is not None and warming.seat.late(now):
            self._give_up(warming.seat, now)
            self.warm_up(warming.job, warming.sizes)
        for seat in list(self._seats):
            if seat.late(now) and not seat.is_hung:
                self._give_up(seat, now)

    def _give_up(self, late: Seat, now: float) -> None:
        """Leave a replica's calls behind, and ask it again only if it was started anew."""
        replica = late.replica
        words = _words(replica, now - late.began)
        _LOG.warning("%s", words)
        with self._lock:
            same = [seat for seat in self._seats if seat.replica is replica]
            left = [late, *(seat for seat in same if seat is not late and seat.began < inf)]
            for seat in left:
                seat.is_hung = True
        for seat in left:
            if seat.thread is not None:
                seat.thread.name = f"{HUNG}-{replica.name}"
        policy = replica.policy
        if isinstance(policy, Restarts) and policy.restart():
            self.restarts += 1
            replica.forget()
        else:
            replica.is_lost = True
        self._seats = [
            seat for seat in self._seats if seat not in left and not seat.replica.is_lost
        ]
        if not replica.is_lost:
            anew = [Seat(replica) for seat in left if seat in same]
            self._seats += anew
            for seat in anew:
                self._start(seat)
        if not self._seats:
            raise PolicyHungError(words)
        self._answers.extend(_unanswered(seat, words, now) for seat in left if seat.job is not None)


def allowed_s(
    deadline: InferDeadline, expected_s: float, *, is_new: bool, slowest_first_s: float | None
) -> float:
    """Seconds for a batch that should take `expected_s`. One of a new shape may compile: it has
    ten times what the slowest first call of another shape took, where one is known."""
    usual = deadline.seconds
    if usual is None:
        usual = max(LEAST_S, TIMES_EXPECTED * expected_s)
    if not is_new:
        return usual
    first = deadline.first_s if slowest_first_s is None else TIMES_FIRST * slowest_first_s
    return max(usual, first)


def _unanswered(seat: Seat, words: str, now: float) -> Answered:
    job = seat.job
    assert job is not None
    rows = len(job.rows)
    return Answered(
        job=job,
        began=seat.began,
        ended=now,
        chunks=[None] * rows,
        errors=[PolicyHungError(words)] * rows,
        blameless=True,
    )


def _words(replica: Replica, seconds: float) -> str:
    return (
        f"Policy {replica.name!r} has not returned from infer for {seconds:,.0f} s, so it is taken "
        "to hang. Where it needs longer, allow that with --infer-timeout."
    )
