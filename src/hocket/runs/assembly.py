"""The one way from names to a running rollout: suites, tasks, workers, runtime, policy, batches.

    assembly = Assembly(config, config.lanes)
    policy = assembly.policy()
    lanes = assembly.count_lanes(policy, trial, episodes)
    fleet = Fleet(assembly.runtime(), assembly.worker(policy.spec, lanes), FleetConfig(lanes=lanes))
    with assembly.engine(policy, fleet, EnginePlan(rule=rule, config=config), readers) as engine:
        engine.run(trials, planned=...)

Every verb takes this way, so that whatever one of them can run in, all of them can. What was asked
of an env once is not asked again: a run has one assembly.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hocket.core import plugins
from hocket.core.contracts.env import TASK_AND_SEED, Suite, start_scheme
from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Reader
from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Ref, Trial
from hocket.core.specs import EnvSpec, PolicySpec, TaskInfo
from hocket.engine.batches import BatchConfig, Batches
from hocket.engine.chunk_rules import ChunkRule
from hocket.engine.config import EngineConfig
from hocket.engine.delay import ControlDelay, DelayPlan
from hocket.engine.loop import Engine
from hocket.engine.scheduling.scheduler import Scheduler, SchedulerConfig
from hocket.errors import EnvError, UnknownNameError, UsageError
from hocket.runs.policies import inference_of, load_policy, require_files
from hocket.runs.probe import Probe, probe, retried
from hocket.runs.subject import Subject
from hocket.system import machine
from hocket.system.interpreter import examine_python
from hocket.system.waits import awaiting
from hocket.workers.fleet import Fleet, FleetConfig
from hocket.workers.inline import InlineRuntime
from hocket.workers.local.runtime import Lent, LocalRuntime
from hocket.workers.suites import has_rows

ROWS = 256
"""Rows of a batched simulator where the user does not say: enough for a GPU's step to be shared by
many, few enough for any machine; docs/design/batched.md has the throughput of others."""


_EARLY: Mapping[str, type[LocalRuntime | InlineRuntime]] = {
    "local": LocalRuntime,
    "inline": InlineRuntime,
}
"""Runtimes whose workers start early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """How an engine asks a policy and moves its lanes."""

    rule: Callable[[], ChunkRule]
    """Makes what says which actions of a chunk are executed."""
    config: EngineConfig
    batching: BatchConfig = field(default_factory=BatchConfig)
    timing: DelayPlan | None = None
    """When answers can be used, where the world goes on while the policy thinks: lanes go on
    meanwhile, and their workers need two slots."""
    infer_timeout_s: float | None = None
    """A call of the policy that takes longer is given up; None leaves that to its own times."""
    fits: Callable[[EnvSpec], None] = lambda _: None
    """Raises for a task that the policy cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What the workers of an engine record."""

    sinks: tuple[Ref, ...] = ()
    record: Callable[[Trial, int], Mapping[str, Any]] | None = None
    """What the sinks are asked for in each attempt; nothing where it is None."""
    folder: str | None = None
    """Where they write."""


NOTHING_RECORDED = Recording()


class Assembly:
    """What a subject needs in order to run. Nothing is built before it is asked for; the settings
    of envs are checked at once."""

    def __init__(self, subject: Subject, lanes: int | Literal["auto"] = "auto") -> None:
        """`lanes` is what the user asked for: one lane runs in this process."""
        self.subject = subject
        self._lanes = lanes
        self.why_lanes = ""
        """Why so many were chosen, in a sentence, where that was left to us."""
        self._tasks: dict[str, Sequence[TaskInfo]] = {}
        self._warm: LocalRuntime | InlineRuntime | None = None
        """A runtime that was started in advance, until somebody takes it."""
        shares = plugins.share_settings("envs", subject.env, subject.env_config)
        self.suites = {name: Ref(name=name, config=shares[name]) for name in subject.env}
        for name, share in shares.items():
            if settle := getattr(plugins.find("envs", name).build, "settle", None):
                self.suites[name] = Ref(name=name, config=settle(share))

    @functools.cached_property
    def is_batched(self) -> bool:
        """True if the lanes are rows of a batched simulator."""
        return any(map(has_rows, self.suites.values()))

    @functools.cached_property
    def has_rows_alone(self) -> bool:
        """True if no single env can be made of a batched simulator: then its episodes cannot be
        shown again from their states."""
        builds = [plugins.find("envs", name).build for name in self.subject.env]
        return any(hasattr(b, "make_rows") and not hasattr(b, "make") for b in builds)

    # -- envs ----------------------------------------------------------------------------------

    def tasks(self) -> dict[str, Sequence[TaskInfo]]:
        """The tasks of each suite; a worker is asked where only the simulator knows."""
        return {suite: self.tasks_of(suite) for suite in self.suites}

    def tasks_of(self, suite: str) -> Sequence[TaskInfo]:
        """The tasks of one suite."""
        if suite not in self._tasks:
            found = self._find_tasks(suite)
            names = [info.name for info in found]
            if not names:
                raise EnvError(f"{suite!r} has no tasks, so that there is nothing to run.")
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise EnvError(f"{suite!r} has several tasks called {twice[0]!r}: name them apart.")
            self._tasks[suite] = found
        return self._tasks[suite]

    def _find_tasks(self, suite: str) -> Sequence[TaskInfo]:
        python = self.subject.env_python
        if python is not None:
            examine_python(python)
        adapter = plugins.find("envs", suite)
        if _is_env(adapter.build):
            return (TaskInfo(name=suite.rpartition(":")[2]),)
        if adapter.takes_argument and not getattr(adapter.build, "tasks_need_simulator", False):
            settings = plugins.configure(adapter, self.suites[suite].config)
            found: Suite = adapter.build(adapter.argument, settings)
            try:
                return found.tasks()
            except UnknownNameError:
                if python is None and self.is_on_this_machine:
                    raise  # Packages of another interpreter may know more names.
        spec = WorkerSpec(suites=self.suites, python=python)

        def ask() -> Sequence[TaskInfo]:
            with (
                awaiting(f"a worker that lists the tasks of {suite}"),
                Fleet(self.runtime(), spec, FleetConfig(lanes=1)) as fleet,
            ):
                return fleet.describe(suite, timeout_s=self.subject.start_timeout_s)

        return retried(ask)

    @property
    def is_on_this_machine(self) -> bool:
        """True if workers are processes beside this one, with the packages that are here."""
        return self.subject.runtime in ("auto", "inline", "local")

    def plan(self, seed: int, episodes: int) -> list[Trial]:
        """The trials of `episodes` seeds from `seed` on, seed by seed, with all tasks of each
        that have such a start."""
        tasks = [(suite, info) for suite, infos in self.tasks().items() for info in infos]
        planned = [
            Trial(suite=suite, task=info.name, seed=seed + i)
            for i in range(episodes)
            for suite, info in tasks
            if info.starts is None or seed + i < info.starts
        ]
        if not planned:
            most = max(info.starts or 0 for _, info in tasks)
            raise UsageError(f"--seed {seed}: the tasks have starts 0 to {most - 1}.")
        return planned

    def first_trial(self, seed: int) -> Trial:
        """The first suite's first task, with this seed."""
        suite, tasks = next(iter(self.tasks().items()))
        return Trial(suite=suite, task=tasks[0].name, seed=seed)

    def has_independent_starts(self) -> bool:
        """True if trials of one seed start independently of each other: every suite says so of its
        tasks, under the scheme that makes it true, and no task stands in two suites."""
        suites = [plugins.find("envs", name).build for name in self.subject.env]
        if not all(getattr(suite, "independent_starts", False) for suite in suites):
            return False
        name = self.subject.env_config.get("start_scheme", TASK_AND_SEED)
        if not start_scheme(name).is_independent:
            return False
        names = [info.name for infos in self.tasks().values() for info in infos]
        return len(set(names)) == len(names)

    def require_envs(self) -> None:
        """Raise where an env's library or its data is not at hand, rather than in each worker.
        What there is in a container or on another machine, only its workers know."""
        if not self.is_on_this_machine:
            return
        python = self.subject.env_python
        for name in self.subject.env:
            if python is None:
                plugins.require_extra("envs", name)
            else:
                missing = functools.partial(examine_python, python)
                plugins.require_extra("envs", name, missing=missing, python=python)
            adapter = plugins.find("envs", name)
            require_data = getattr(adapter.build, "require_data", None)
            if require_data is not None:
                require_data(adapter.argument)

    # -- workers -------------------------------------------------------------------------------

    def runtime(self, *, apart: bool = False) -> Runtime:
        """The runtime that the subject names. `auto` runs one lane that was asked for here, where
        `breakpoint()` works, and so all rows of a batched simulator, which may share a device with
        the policy; all others run in processes, and so does whatever shall stay `apart`."""
        name = self._runtime_name(apart=apart)
        warm = self._warm
        if warm is not None and type(warm) is _EARLY.get(name):
            self._warm = None  # Whoever takes it owns it, and closes it.
            return warm
        built: Runtime = plugins.build("runtimes", name, self.subject.runtime_config)
        return built

    def _runtime_name(self, *, apart: bool) -> str:
        if self.subject.runtime != "auto":
            return self.subject.runtime
        is_here = not apart and (self.is_batched or self._lanes == 1)
        return "inline" if is_here and self.subject.env_python is None else "local"

    def _warm_up(self, trials: Sequence[Trial]) -> Callable[[], None]:
        """Begin to start what workers are forked from, and wait for nothing: it imports simulators
        while the policy loads. Where that is in a process of its own, workers of single envs start
        too, and make those of the first trials; what this gives looks after them."""
        kind = _EARLY.get(self._runtime_name(apart=False))
        if self._warm is not None or not trials or kind is None:
            return lambda: None
        self._warm = kind()
        if isinstance(self._warm, LocalRuntime):
            self._warm.prepare(self.worker())
        if self.subject.policy_python is not None and not self.is_batched:
            # Where lanes are to be counted, one is looked at first.
            first = trials[: 1 if self._lanes == "auto" else self._lanes]
            self._warm.early.begin(self.worker(), [(each.suite, each.task) for each in first])
        return self._warm.early.look

    def close(self) -> None:
        """End what was started in advance. Twice is safe."""
        if self._warm is not None:
            self._warm.close()
            self._warm = None

    def worker(self, spec: PolicySpec | None = None, lanes: int = 1) -> WorkerSpec:
        """What workers must know for a policy of this spec; without one they observe everything. A
        worker hosts one lane, or all `lanes` rows of a batched simulator."""
        if self.subject.disturbed and self.is_batched:
            raise UsageError(
                f"{', '.join(self.subject.env)} is a batched simulator, whose rows cannot be "
                f"disturbed one by one: leave out --perturb, or use a suite of single envs."
            )
        return WorkerSpec(
            suites=self.suites,
            lanes=lanes if self.is_batched else 1,
            reads=None if spec is None or spec.inputs is None else tuple(spec.inputs),
            cameras=None if spec is None else spec.cameras,
            history=1 if spec is None else spec.history,
            python=self.subject.env_python,
            perturb=self.subject.disturbed,
        )

    def count_lanes(
        self,
        policy: Policy,
        trial: Trial,
        episodes: int,
        *,
        replan: int | None = None,
        fits: Callable[[EnvSpec], None] = lambda _: None,
        alone: bool = False,
    ) -> int:
        """The lanes that the user asked for. `auto` takes as many as saturate the scarcer of cores
        and policy, by the first chunk of `trial`, and never more than there are episodes. `alone`:
        no two rows will share a batch."""
        if self._lanes != "auto":
            return self._lanes
        if self.is_batched:
            return min(ROWS, episodes)
        count, self.why_lanes = self.probe(policy, trial, replan=replan, fits=fits).lanes(
            cores=machine.cores(),
            memory=machine.memory_bytes(),
            trials=episodes,
            policy=policy,
            alone=alone,
        )
        return count

    def probe(
        self,
        policy: Policy,
        trial: Trial,
        *,
        replan: int | None,
        fits: Callable[[EnvSpec], None] = lambda _: None,
    ) -> Probe:
        """What one chunk of a trial shows."""
        worker, timeout_s = self.worker(policy.spec), self.subject.start_timeout_s

        def look() -> Probe:
            runtime = self.runtime() if self._warm is None else Lent(self._warm)
            with awaiting(f"one chunk of {trial.task}, to see how many lanes pay"):
                return probe(
                    runtime,
                    worker,
                    policy,
                    trial,
                    name=self.subject.policy,
                    replan=replan,
                    fits=fits,
                    timeout_s=timeout_s,
                )

        return retried(look)

    def cores(self, lanes: int) -> int:
        """Cores that lanes compete for. Rows share each step: none slows another down."""
        return lanes if self.is_batched else machine.cores()

    # -- policy --------------------------------------------------------------------------------

    def policy(self, trials: Sequence[Trial] = ()) -> Policy:
        """The policy, in an interpreter of its own where the subject names one. Workers start while
        it loads, for those who are to run these `trials`, in this order; whichever of the two fails
        first ends the other. `close` ends workers that nobody took."""
        require_files(self.subject)
        try:
            return load_policy(self.subject, self._warm_up(trials))
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def engine(
        self,
        policy: Policy,
        fleet: Fleet,
        plan: EnginePlan,
        readers: Sequence[Reader],
        recording: Recording = NOTHING_RECORDED,
    ) -> Iterator[Engine]:
        """An engine that joins this policy with the lanes of a fleet. The policy's threads end with
        it; the fleet stays."""
        inference = inference_of(
            self.subject, policy, alone=plan.batching.alone, timeout_s=plan.infer_timeout_s
        )
        settings = SchedulerConfig(
            cores=self.cores(fleet.config.lanes),
            max_batch=1 if plan.batching.alone else policy.spec.max_batch,
            concurrency=inference.concurrency,
        )
        delayed = None
        if plan.timing is not None:
            delayed = ControlDelay(plan.timing, length=policy.spec.chunk_length)
        batches = Batches(policy, inference, Scheduler(settings), plan.batching, delayed)
        with contextlib.closing(inference):
            yield Engine(
                fleet=fleet,
                batches=batches,
                make_rule=plan.rule,
                config=plan.config,
                readers=readers,
                fits=plan.fits,
                record=recording.record,
                folder=recording.folder,
            )


def _is_env(build: Any) -> bool:
    """True if a class is that of an env, and so of one task: a suite of tasks has other methods."""
    is_suite = hasattr(build, "tasks") and (hasattr(build, "make") or hasattr(build, "make_rows"))
    return isinstance(build, type) and hasattr(build, "step") and not is_suite
