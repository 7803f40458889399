"""From an evaluation's configuration to what it needs: suites, tasks, trials, policy, workers."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.core import plugins
from hocket.core.contracts.env import Suite
from hocket.core.contracts.policy import Policy, Replicas, Sessions
from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import PolicySpec, Ref, TaskInfo, Trial
from hocket.core.plugins import share_settings
from hocket.engine.batches import HANDLING_ROW_S, HANDLING_S, BatchConfig, Batches
from hocket.engine.inference import Inference
from hocket.engine.scheduler import Scheduler, SchedulerConfig
from hocket.errors import ConfigError, PolicyError, UsageError
from hocket.runs.config import EvalConfig
from hocket.workers.fleet import Fleet, FleetConfig
from hocket.workers.suites import has_rows

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


def suites_of(config: EvalConfig) -> dict[str, Ref]:
    """Each env's name and settings, checked against its adapter."""
    shares = share_settings("envs", config.env, config.env_config)
    return {name: Ref(name=name, config=shares[name]) for name in config.env}


def tasks_of(config: EvalConfig, suites: Mapping[str, Ref]) -> dict[str, Sequence[TaskInfo]]:
    """The tasks of each suite; a worker is asked where only the simulator knows."""
    if config.env_python is not None:
        examine_python(config.env_python)
    tasks: dict[str, Sequence[TaskInfo]] = {}
    for name, ref in suites.items():
        adapter = plugins.find("envs", name)
        if not adapter.takes_argument or getattr(adapter.build, "tasks_need_simulator", False):
            tasks[name] = _ask_worker(config, suites, name)
            continue
        suite: Suite = adapter.build(adapter.argument, plugins.configure(adapter, ref.config))
        tasks[name] = suite.tasks()
    return tasks


def require_envs(config: EvalConfig) -> None:
    """Raise where an env's library or its data is not at hand, rather than in each worker."""
    python = config.env_python
    for name in config.env:
        if python is None:
            plugins.require_extra("envs", name)
        else:
            missing = functools.partial(examine_python, python)
            plugins.require_extra("envs", name, missing=missing, python=python)
        adapter = plugins.find("envs", name)
        require_data = getattr(adapter.build, "require_data", None)
        if require_data is not None:
            require_data(adapter.argument)


def plan_trials(config: EvalConfig) -> list[Trial]:
    """Every trial of the evaluation: seed by seed, all tasks of a seed before the next seed."""
    tasks = tasks_of(config, suites_of(config))
    return [
        Trial(suite=suite, task=task.name, seed=config.seed + episode)
        for episode in range(config.episodes)
        for suite, infos in tasks.items()
        for task in infos
    ]


def build_policy(config: EvalConfig) -> Policy:
    """The policy that the configuration names, in an interpreter of its own where it names one."""
    name, settings = config.policy, config.policy_config
    if config.policy_python is not None:
        name = f"sidecar:{name}"
        settings = {"python": config.policy_python, "config": dict(settings)}
    return require_policy(plugins.build("policies", name, settings), config.policy)


def require_policy(policy: Any, name: str) -> Policy:
    """The object itself, where it keeps the outline of the contract."""
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


def worker_spec(config: EvalConfig, suites: Mapping[str, Ref], policy: Policy) -> WorkerSpec:
    """What workers must know for this policy."""
    spec = policy.spec
    return WorkerSpec(
        suites=suites,
        reads=None if spec.inputs is None else tuple(spec.inputs),
        cameras=spec.cameras,
        history=spec.history,
        python=config.env_python,
    )


def is_batched(config: EvalConfig) -> bool:
    """Whether the lanes of the run are rows of a batched simulator."""
    return any(has_rows(name) for name in config.env)


def build_runtime(config: EvalConfig) -> Runtime:
    """One lane that was asked for runs here, where `breakpoint()` works, and so do all rows of a
    batched simulator, which may share a device with the policy; all others run in workers."""
    is_inline = config.lanes == 1 and config.env_python is None
    if is_batched(config):
        if config.env_python is not None:
            raise UsageError(
                "A batched simulator runs in hocket's own process: leave out --env-python and run "
                "hocket itself with that interpreter."
            )
        is_inline = True
    built: Runtime = plugins.build("runtimes", "inline" if is_inline else "local")
    return built


def refuse_long_replan(config: EvalConfig, policy: Policy) -> None:
    """Raise where more actions are to be executed than a chunk has."""
    length = policy.spec.chunk_length
    if config.replan is not None and 0 < length < config.replan:
        raise ConfigError(
            f"replan is {config.replan}, but a chunk of policy {config.policy!r} has only {length} "
            f"actions. Choose at most {length}."
        )


def build_batches(config: EvalConfig, policy: Policy, inference: Inference, cores: int) -> Batches:
    """The scheduler for this policy, joined with its threads."""
    settings = SchedulerConfig(
        cores=cores,
        max_batch=policy.spec.max_batch,
        concurrency=inference.concurrency,
        handling_s=HANDLING_S,
        handling_row_s=HANDLING_ROW_S,
    )
    return Batches(policy, inference, Scheduler(settings), BatchConfig(pad=config.exact))


def replicas_of(config: EvalConfig, policy: Policy) -> list[tuple[Policy, str]]:
    """The policy, or its copies on the named devices, each with a name for its chunks."""
    if not config.policy_devices:
        return [(policy, config.policy)]
    if not isinstance(policy, Replicas):
        raise UsageError(
            f"Policy {config.policy!r} cannot stand on several devices; leave out --policy-devices."
        )
    if isinstance(policy, Sessions) and len(config.policy_devices) > 1:
        raise UsageError(
            f"Policy {config.policy!r} keeps state for each episode, which one copy of it alone "
            "would know: name one device in --policy-devices."
        )
    replicas = policy.replicas(config.policy_devices)
    return list(zip(replicas, config.policy_devices, strict=True))


def fleet_config(config: EvalConfig, lanes: int) -> FleetConfig:
    """How the workers of so many lanes are watched."""
    return FleetConfig(
        lanes=lanes,
        step_timeout_s=config.step_timeout_s,
        worker_memory=config.worker_memory,
        recycle_after=config.recycle_after,
    )


def _ask_worker(config: EvalConfig, suites: Mapping[str, Ref], name: str) -> Sequence[TaskInfo]:
    spec = WorkerSpec(suites=suites, python=config.env_python)
    with Fleet(build_runtime(config), spec, FleetConfig(lanes=1)) as fleet:
        return fleet.describe(name, timeout_s=300.0)
