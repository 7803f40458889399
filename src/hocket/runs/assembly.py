"""The one way from names to a running rollout: suites, tasks, workers, runtime, policy, batches.

    assembly = Assembly(config, config.lanes)
    policy = assembly.policy()
    lanes = assembly.count_lanes(policy, trial, episodes)
    fleet = Fleet(assembly.runtime(), assembly.worker(policy.spec, lanes), FleetConfig(lanes=lanes))
    inference = assembly.inference(policy)
    batches = assembly.batches(policy, inference, lanes)

Every verb takes this way, so that whatever one of them can run in, all of them can.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from hocket.core import plugins
from hocket.core.contracts.env import TASK_AND_SEED, Suite, start_scheme
from hocket.core.contracts.policy import Policy, Replicas, Sessions
from hocket.core.contracts.runtime import Factor, Runtime, WorkerSpec
from hocket.core.data import EnvSpec, PolicySpec, Ref, TaskInfo, Trial
from hocket.core.modules import places_of
from hocket.engine.batches import BatchConfig, Batches
from hocket.engine.delay import DelayedLanes, Timing
from hocket.engine.inferring.deadline import InferDeadline
from hocket.engine.inferring.inference import Inference
from hocket.engine.scheduling.scheduler import Scheduler, SchedulerConfig
from hocket.errors import HocketError, PolicyError, UnknownNameError, UsageError
from hocket.runs.config import EvalConfig
from hocket.runs.probe import Probe, probe, retried
from hocket.runs.subject import Subject
from hocket.system import machine
from hocket.system.waits import awaiting
from hocket.workers.env.factors import parse_factors
from hocket.workers.fleet import Fleet, FleetConfig
from hocket.workers.local.runtime import Lent, LocalRuntime
from hocket.workers.suites import has_rows

ROWS = 256
"""Rows of a batched simulator where the user does not say. Chosen by hand: enough for a GPU's step
to be shared by many, few enough for any machine; docs/batched.md has the throughput of others."""


class Assembly:
    """What a subject needs in order to run. Nothing is built before it is asked for; the settings
    of envs are checked at once."""

    def __init__(self, subject: Subject, lanes: int | Literal["auto"] = "auto") -> None:
        """`lanes` is what the user asked for: one lane runs in this process."""
        self.subject = subject
        self._lanes = lanes
        self._warm: LocalRuntime | None = None
        """A runtime that was started in advance, until somebody takes it."""
        shares = plugins.share_settings("envs", subject.env, subject.env_config)
        self.suites = {name: Ref(name=name, config=shares[name]) for name in subject.env}

    @functools.cached_property
    def is_batched(self) -> bool:
        """Whether the lanes are rows of a batched simulator."""
        return any(has_rows(name) for name in self.subject.env)

    @functools.cached_property
    def has_rows_alone(self) -> bool:
        """Whether no single env can be made of a batched simulator: then its episodes cannot be
        shown again from their states."""
        builds = [plugins.find("envs", name).build for name in self.subject.env]
        return any(hasattr(b, "make_rows") and not hasattr(b, "make") for b in builds)

    # -- envs ----------------------------------------------------------------------------------

    def tasks(self) -> dict[str, Sequence[TaskInfo]]:
        """The tasks of each suite; a worker is asked where only the simulator knows."""
        return {suite: self.tasks_of(suite) for suite in self.suites}

    def tasks_of(self, suite: str) -> Sequence[TaskInfo]:
        """The tasks of one suite."""
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
                if not self._is_elsewhere:
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
    def _is_elsewhere(self) -> bool:
        """Whether simulators have other packages than this interpreter."""
        here = self.subject.runtime in ("auto", "inline", "local")
        return self.subject.env_python is not None or not here

    def has_independent_starts(self) -> bool:
        """Whether trials of one seed start independently of each other: every suite says so of its
        tasks, under the scheme that makes it true, and no task stands in two suites."""
        suites = [plugins.find("envs", name).build for name in self.subject.env]
        scheme = start_scheme(self.subject.env_config.get("start_scheme", TASK_AND_SEED))
        if not scheme.is_independent or not all(
            getattr(suite, "independent_starts", False) for suite in suites
        ):
            return False
        names = [info.name for infos in self.tasks().values() for info in infos]
        return len(set(names)) == len(names)

    def require_envs(self) -> None:
        """Raise where an env's library or its data is not at hand, rather than in each worker.
        What there is in a container or on another machine, only its workers know."""
        if self.subject.runtime not in ("auto", "inline", "local"):
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
        if name == "local" and self._warm is not None:
            # Whoever takes it owns it, and closes it.
            warm, self._warm = self._warm, None
            return warm
        built: Runtime = plugins.build("runtimes", name, self.subject.runtime_config)
        return built

    def _runtime_name(self, *, apart: bool) -> str:
        if self.subject.runtime != "auto":
            return self.subject.runtime
        is_here = not apart and (self.is_batched or self._lanes == 1)
        return "inline" if is_here and self.subject.env_python is None else "local"

    def warm_up(self) -> None:
        """Begin to start what workers are forked from, and wait for nothing: it imports simulators
        while the policy loads. `close` ends it where nobody took it."""
        if self._warm is None and self._runtime_name(apart=False) == "local":
            self._warm = LocalRuntime()
            self._warm.prepare(self.worker())

    def close(self) -> None:
        """End what was started in advance. Twice is safe."""
        if self._warm is not None:
            self._warm.close()
            self._warm = None

    def _lent_runtime(self) -> Runtime:
        """A runtime for a short look: the one that was started in advance, which stays."""
        return self.runtime() if self._warm is None else Lent(self._warm)

    def worker(self, spec: PolicySpec | None = None, lanes: int = 1) -> WorkerSpec:
        """What workers must know for a policy of this spec; without one they observe everything. A
        worker hosts one lane, or all `lanes` rows of a batched simulator."""
        return WorkerSpec(
            suites=self.suites,
            lanes=lanes if self.is_batched else 1,
            reads=None if spec is None or spec.inputs is None else tuple(spec.inputs),
            cameras=None if spec is None else spec.cameras,
            history=1 if spec is None else spec.history,
            python=self.subject.env_python,
            perturb=self._factors(),
        )

    def _factors(self) -> tuple[Factor, ...]:
        """What is disturbed in this run."""
        text = self.subject.perturb if isinstance(self.subject, EvalConfig) else ""
        factors = parse_factors(text)
        if factors and self.is_batched:
            raise UsageError(
                f"{', '.join(self.subject.env)} is a batched simulator, whose rows cannot be "
                f"disturbed one by one: leave out --perturb, or use a suite of single envs."
            )
        return factors

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
        worker = self.worker(policy.spec)
        timeout_s = self.subject.start_timeout_s

        def look() -> Probe:
            with awaiting(f"one chunk of {trial.task}, to see how many lanes pay"):
                return probe(
                    self._lent_runtime(),
                    worker,
                    policy,
                    trial,
                    replan=replan,
                    fits=fits,
                    timeout_s=timeout_s,
                )

        seen = retried(look)
        return seen.lanes(
            cores=machine.cores(),
            memory=machine.memory_bytes(),
            trials=episodes,
            policy=policy,
            alone=alone,
        )

    def cores(self, lanes: int) -> int:
        """Cores that lanes compete for. Rows share each step: none slows another down."""
        return lanes if self.is_batched else machine.cores()

    # -- policy --------------------------------------------------------------------------------

    def policy(self) -> Policy:
        """The policy, in an interpreter of its own where the subject names one."""
        subject = self.subject
        name, settings = subject.policy, subject.policy_config
        if subject.policy_python is not None:
            name = f"sidecar:{name}"
            settings = {"python": subject.policy_python, "config": dict(settings)}
        with awaiting(f"the policy {subject.policy} to load"):
            built = require_policy(build_policy(name, settings), subject.policy)
            _ = built.spec  # a policy over the wire connects here
        return built

    def inference(
        self, policy: Policy, *, alone: bool = False, deadline: InferDeadline | None = None
    ) -> Inference:
        """Threads for the policy, or for its copies on the devices that the subject names. Chunks
        carry the name of the copy that made them. Where rows are to be inferred `alone`, one call
        runs at a time. A call that misses the `deadline` is given up."""
        name, devices = self.subject.policy, self.subject.policy_devices
        if not devices:
            return Inference([policy], [name], one_at_a_time=alone, deadline=deadline)
        if not isinstance(policy, Replicas):
            raise UsageError(
                f"Policy {name!r} cannot stand on several devices; leave out --policy-devices."
            )
        if isinstance(policy, Sessions) and len(devices) > 1:
            raise UsageError(
                f"Policy {name!r} keeps state for each episode, which one copy of it alone would "
                "know: name one device in --policy-devices."
            )
        if alone and len(devices) > 1:
            raise UsageError(
                f"--exact asks one copy of policy {name!r} for one row at a time: name one device "
                "in --policy-devices."
            )
        copies = policy.replicas(devices)
        return Inference(copies, devices, one_at_a_time=alone, deadline=deadline)

    def batches(
        self,
        policy: Policy,
        inference: Inference,
        lanes: int,
        config: BatchConfig | None = None,
        timing: Timing | None = None,
    ) -> Batches:
        """The scheduler for this policy and so many lanes, joined with the policy's threads. With a
        `timing` lanes go on while the policy thinks; their workers need two slots."""
        config = config or BatchConfig()
        settings = SchedulerConfig(
            cores=self.cores(lanes),
            max_batch=1 if config.alone else policy.spec.max_batch,
            concurrency=inference.concurrency,
        )
        delayed = None
        if timing is not None:
            delayed = DelayedLanes(timing, length=policy.spec.chunk_length)
        return Batches(policy, inference, Scheduler(settings), config, delayed)


def build_policy(name: str, settings: Mapping[str, Any]) -> Any:
    """The policy of a name; what its maker raises comes as PolicyError, with the maker's lines."""
    try:
        return plugins.build("policies", name, settings)
    except HocketError:
        raise
    except Exception as exc:
        raise PolicyError(
            f"Policy {name!r} cannot be made: {type(exc).__name__}: {exc}{places_of(exc)}"
        ) from exc


def _is_env(build: Any) -> bool:
    """Whether a class is that of an env, and so of one task: a suite of tasks has other methods."""
    is_suite = hasattr(build, "tasks") and (hasattr(build, "make") or hasattr(build, "make_rows"))
    return isinstance(build, type) and hasattr(build, "step") and not is_suite


def require_policy(policy: Any, name: str) -> Policy:
    """The object itself, where it has the outline of a policy; an error says what it lacks."""
    spec = getattr(policy, "spec", None)
    lacks = [] if isinstance(spec, PolicySpec) else ["`spec`, a hocket.PolicySpec"]
    lacks += [
        f"the method `{method}`"
        for method in ("infer(batch)", "close()")
        if not callable(getattr(policy, method.partition("(")[0], None))
    ]
    if lacks:
        raise PolicyError(
            f"{name!r} is no policy: {type(policy).__name__!r} lacks {' and '.join(lacks)}. "
            "hocket.testing.check_policy(policy) tests the whole contract."
        )
    found: Policy = policy
    return found


_EXAMINE = """
import importlib.util, json, sys
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps({"version": sys.version_info[:2], "missing": missing}))
"""
_NEEDED = ("numpy",)
_OLDEST = [3, 10]


def examine_python(python: str, *wanted: str) -> list[str]:
    """Which of the wanted modules another interpreter lacks; refuses one that cannot host envs."""
    executable = shutil.which(python)
    if executable is None:
        raise UsageError(f"There is no Python interpreter at {python!r}. Check --env-python.")
    command = [executable, "-c", _EXAMINE, *_NEEDED, *wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        answer = json.loads(done.stdout)
        version, missing = answer["version"], answer["missing"]
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{python!r} is no Python interpreter. Check --env-python.") from error
    if version < _OLDEST:
        raise UsageError(
            f"--env-python {python} is Python {version[0]}.{version[1]}; workers need 3.10 or "
            "later."
        )
    needed = [name for name in _NEEDED if name in missing]
    if needed:
        raise UsageError(
            f"--env-python {python} lacks {' and '.join(needed)}. Run: {python} -m pip install "
            f"{' '.join(needed)}"
        )
    return [name for name in wanted if name in missing]
