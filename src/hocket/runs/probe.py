"""One chunk in one worker, to see what an env and a policy are, whether they fit, and what they
cost."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np

from hocket.core.contracts.policy import Binds, Policy
from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Array, Chunk, Observation, Row, Trial, noise_seed
from hocket.core.plugins import did_you_mean, find, is_plain
from hocket.core.specs import ArraySpec, EnvSpec, PolicySpec
from hocket.engine.inferring.deadline import FIRST_S
from hocket.engine.inferring.inference import HUNG
from hocket.engine.inferring.policy_thread import Answered, Job, PolicyThread, account, words
from hocket.engine.scheduling.estimates import Latency
from hocket.engine.scheduling.model import ChunkWork, best_lanes
from hocket.errors import EnvError, HocketError, PolicyError, PolicyHungError, WorkerFailed
from hocket.system import limits
from hocket.system.text import counted
from hocket.workers import notices
from hocket.workers.fleet import Fleet, FleetConfig

_LONGEST_TIMING_S = 3.0
RATE_TOLERANCE = 0.01
"""Control rates that differ by less than this share are the same rate, rounded."""
_TRIES = 3
_LAST_TRY_S = 60.0
"""A worker that is lost later than this is not tried again: what takes so long to fail may be a
wait that was in vain."""
_LOOKS = 7
"""Times that a chunk is executed and each batch inferred, in the seconds that there are for it."""
_PER_CORE, _EPISODES = 16, 4
"""Most lanes for each core, and fewest episodes for each lane, of those that are counted here."""
_COUNTS = sorted({n << k for n in (1, 3) for k in range(15)})
NoticeT = TypeVar("NoticeT", bound=notices.Notice)
Seen = TypeVar("Seen")


class LaneCount(NamedTuple):
    """How many lanes were chosen."""

    lanes: int
    why: str
    """In a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What one chunk showed."""

    spec: EnvSpec
    execute_s: float
    """Seconds to execute a chunk, observing included."""
    latencies: Mapping[int, float]
    """Seconds to infer, by batch size."""
    memory: int | None
    """Resident bytes of the worker."""
    chunk_length: int
    """Actions in the policy's answer."""

    def lanes(
        self, *, cores: int, memory: int, trials: int, policy: Policy, alone: bool = False
    ) -> LaneCount:
        """The number of lanes that saturates the scarcer of cores and policy, within bounds;
        `alone` where rows are inferred one at a time."""
        bounds = {
            f"{cores} cores": _PER_CORE * cores,
            # The last episodes end one by one: with fewer for each lane, most lanes only wait then.
            f"{trials:,} trials": max(min(trials, cores), trials // _EPISODES),
            "the limit of open files": limits.most_workers(),
        }
        if self.memory:
            # A fifth stays free for the policy, the page cache, and envs that grow.
            bounds["memory"] = int(0.8 * memory / self.memory)
        bound = min(bounds, key=lambda name: bounds[name])
        most = max(1, bounds[bound])
        work = ChunkWork(
            cores=cores,
            execute_s=self.execute_s,
            concurrency=1 if alone else policy.spec.concurrency,
            max_batch=1 if alone else policy.spec.max_batch,
        )
        enough = best_lanes(work, Latency(self.latencies), max_lanes=most)
        # Numbers that are far apart: two looks at one env rarely differ by more.
        count = min(most, next(n for n in _COUNTS if n >= enough))
        why = f"as many as {bound} bear" if count == most else "more would gain less than 5 %"
        return LaneCount(
            count,
            f"{counted(count, 'lane')}: {why} where a chunk takes {1000 * self.execute_s:.3g} ms, "
            f"and the policy {1000 * self.latencies[1]:.3g} ms for one row.",
        )


def probe(
    runtime: Runtime,
    worker: WorkerSpec,
    policy: Policy,
    trial: Trial,
    *,
    name: str,
    replan: int | None,
    fits: Callable[[EnvSpec], None] = lambda _: None,
    timeout_s: float = 300.0,
) -> Probe:
    """Run the first chunk of `trial` in a worker of its own, which ends with its runtime.

    `name` is the policy's. `fits` raises where the policy cannot run the env, before it is asked.
    The env's own error comes as EnvError, the policy's as PolicyError, a lost worker as
    WorkerFailed.
    """
    config = FleetConfig(lanes=1, start_timeout_s=timeout_s)
    with Fleet(runtime, worker, config) as fleet:
        ready, spec = _reset(fleet, trial, timeout_s)
        fits(spec)
        if isinstance(policy, Binds):
            with words():
                policy.bind(spec)
        job = job_of(fleet.arrays(0), row_of(trial, ready.prompts[0], spec))
        chunk, latencies = _infer(PolicyThread(policy, name), job, policy.spec.max_batch)
        actions = chunk.actions[: replan or policy.spec.replan or len(chunk.actions)]
        return Probe(
            spec=spec,
            execute_s=_step_s(fleet, actions, timeout_s) * len(actions),
            latencies=latencies,
            memory=fleet.memory(0),
            chunk_length=len(chunk.actions),
        )


def retried(look: Callable[[], Seen]) -> Seen:
    """What a look at a new worker gives. A worker that is lost costs one of a few tries, as one
    that is lost during a run costs one attempt; `look` makes all it needs anew."""
    began = time.monotonic()
    for tried in range(1, _TRIES + 1):
        try:
            return look()
        except WorkerFailed as exc:
            if tried == _TRIES or time.monotonic() - began > _LAST_TRY_S:
                times = "once" if tried == 1 else f"{tried} times, one after the other"
                raise WorkerFailed(
                    f"The first worker was lost {times}, before the run began (`hocket check` "
                    f"tries the env and the policy alone). {exc}"
                ) from exc
    raise AssertionError("every try returns or raises")


def check_specs(policy: PolicySpec, env: EnvSpec, name: str = "") -> list[str]:
    """A sentence on each thing that does not fit a policy of this name; empty where all does."""
    renames = ""
    if name and not is_plain("policies", name) and "keys" in find("policies", name).settings:
        renames = (
            " --policy.keys says which key each of its inputs reads: --policy.keys "
            "observation.images.top observation/image."
        )
    problems = [
        problem
        for key, wanted in (policy.inputs or {}).items()
        if key != "prompt" and (problem := _input_problem(key, wanted, policy, env, renames))
    ]
    for key in policy.cameras or ():
        if key not in env.cameras and key not in (policy.inputs or {}):
            problems.append(
                f"The policy wants the camera {key!r}, which the env does not have."
                f"{did_you_mean(key, env.cameras)} It has: {', '.join(env.cameras) or 'none'}."
            )
    if policy.action_size is not None and policy.action_size != env.action.size:
        problems.append(
            f"The policy answers with {policy.action_size} numbers an action; the env is driven "
            f"by {env.action.size}."
        )
    ours, theirs = policy.control_rate, env.task.control_rate
    if ours and theirs and abs(ours - theirs) > RATE_TOLERANCE * theirs:
        problems.append(
            f"The policy's actions are for {ours:g} steps a second; the env runs at {theirs:g}."
        )
    return problems


def _input_problem(
    key: str, wanted: ArraySpec, policy: PolicySpec, env: EnvSpec, renames: str
) -> str | None:
    given = env.observations.get(key)
    if given is None and key in env.cameras:
        return (
            f"The policy reads the image {key!r}, but leaves it out of the cameras that it asks "
            f"to be rendered ({', '.join(policy.cameras or ()) or 'none'})."
        )
    if given is None:
        known = sorted({*env.observations, *env.cameras})
        return (
            f"The policy reads {key!r}, which the env does not give.{did_you_mean(key, known)} "
            f"It gives: {', '.join(known)}.{renames}"
        )
    same_rank = len(wanted.shape) == len(given.shape)
    pairs = zip(wanted.shape, given.shape, strict=False)
    if not same_rank or any(a not in (-1, b) for a, b in pairs):
        return f"{key!r} has the shape {given.shape}; the policy wants {wanted.shape}."
    # Another width of the same kind loses nothing but digits; another kind is another meaning.
    if wanted.dtype and np.dtype(wanted.dtype).kind != np.dtype(given.dtype).kind:
        ours, theirs = np.dtype(wanted.dtype).name, np.dtype(given.dtype).name
        return f"{key!r} is {theirs}; the policy wants {ours}."
    return None


def _reset(fleet: Fleet, trial: Trial, timeout_s: float) -> tuple[notices.LanesBegun, EnvSpec]:
    """Start a fleet of one lane, and begin a trial in it."""
    fleet.start()
    wait_for(fleet, notices.LanesUp, timeout_s)
    fleet.begin([0], [0], [trial], [None], final_observation=False, record=[{}])
    ready = wait_for(fleet, notices.LanesBegun, timeout_s)
    assert ready.spec is not None  # a new worker always tells
    return ready, ready.spec


def _step_s(fleet: Fleet, actions: Array, timeout_s: float) -> float:
    """Seconds that a step takes. The same chunk is executed a few times: the first warms what
    others find warm, and any may be held up by other programs."""
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _LOOKS and time.perf_counter() - began < _LONGEST_TIMING_S:
        fleet.execute([0], [0], [len(times)], [actions])
        executed = wait_for(fleet, notices.LanesExecuted, timeout_s)
        times.append(executed.busy_s[0] / max(1, executed.steps[0]))
        if executed.ends[0]:
            break
    return median(times)


def row_of(trial: Trial, prompt: str, spec: EnvSpec) -> Row:
    """The first decision of an attempt that belongs to no run."""
    return Row(
        trial=trial,
        attempt=0,
        chunk=0,
        noise_seed=noise_seed(trial, 0),
        prompt=prompt or spec.task.prompt,
        session=f"probe of {secrets.token_hex(8)}",
        env=spec,
    )


def job_of(seen: Observation, row: Row) -> Job:
    """What a policy is asked for one row."""
    size = None if row.env is None else row.env.action.size
    return Job(number=0, queue="probe", rows=(row,), views=[seen], action_size=size)


def _infer(thread: PolicyThread, job: Job, max_batch: int) -> tuple[Chunk, dict[int, float]]:
    """The policy's answer, and its times; what it raises comes as PolicyError. It is asked on
    another thread, which is left behind where it never returns."""
    came: list[tuple[Answered, dict[int, float]]] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            latencies = _time(thread, job, max_batch)
            came.append((thread.answer(job), latencies))
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    asking = threading.Thread(target=ask, name="hocket-probe", daemon=True)
    asking.start()
    asking.join(FIRST_S)
    if asking.is_alive():
        asking.name = HUNG
        raise PolicyHungError(f"The policy has not returned from infer for {FIRST_S:,.0f} s.")
    if came:
        answer, latencies = came[0]
        if (chunk := answer.chunks[0]) is not None:
            return chunk, latencies
        errors.append(answer.errors[0] or PolicyError("The policy gave no answer."))
    if isinstance(errors[0], HocketError):
        raise errors[0]
    raise PolicyError(account(errors[0])) from errors[0]


def _time(thread: PolicyThread, job: Job, max_batch: int) -> dict[int, float]:
    """Seconds by batch size, for as many sizes as a few seconds allow. What else the machine does
    only adds to them: the least of a few looks counts, and what a larger batch takes is enough."""
    latencies: dict[int, float] = {}
    began = time.perf_counter()
    sizes = [1 << power for power in range(max_batch.bit_length())]
    for size in sizes * _LOOKS:
        if time.perf_counter() - began > _LONGEST_TIMING_S:
            break
        latencies[size] = min(latencies.get(size, math.inf), thread.time(job, size).seconds)
    for size in reversed(sizes[: len(latencies) - 1]):
        latencies[size] = min(latencies[size], latencies[2 * size])
    return latencies


def wait_for(fleet: Fleet, kind: type[NoticeT], timeout_s: float) -> NoticeT:
    """The first notice of a kind; a lane that fails comes as EnvError or WorkerFailed."""
    deadline = time.perf_counter() + timeout_s
    while (left := deadline - time.perf_counter()) > 0:
        for notice in fleet.poll(min(left, 0.1)):
            if isinstance(notice, kind):
                return notice
            if isinstance(notice, notices.LaneFailed):
                text = f"{notice.message}\n{notice.traceback}".rstrip()
                # After an error of the env's the worker is replaced too: that is no loss of it.
                is_lost = isinstance(notice.kind, notices.WorkerFault)
                raise (WorkerFailed if is_lost else EnvError)(text)
    raise WorkerFailed(f"A worker said nothing for {timeout_s:g} s.")
