"""From an evaluation's configuration to what it needs: suites, tasks, trials, policy, workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket import config as run_config
from hocket import plugins
from hocket.contracts import Policy, Runtime, Suite, WorkerSpec
from hocket.data import PolicySpec, Ref, TaskInfo, Trial
from hocket.errors import PolicyError, UsageError
from hocket.eval_config import EvalConfig
from hocket.fleet.fleet import Fleet, FleetConfig
from hocket.fleet.suites import has_rows


def suites_of(config: EvalConfig) -> dict[str, Ref]:
    """Each env's name and settings, checked against its adapter."""
    shares = run_config.share_settings("envs", config.env, config.env_config)
    return {name: Ref(name=name, config=shares[name]) for name in config.env}


def tasks_of(config: EvalConfig, suites: Mapping[str, Ref]) -> dict[str, Sequence[TaskInfo]]:
    """The tasks of each suite; a worker is asked where only the simulator knows."""
    tasks: dict[str, Sequence[TaskInfo]] = {}
    for name, ref in suites.items():
        adapter = plugins.find("envs", name)
        if not adapter.takes_argument or getattr(adapter.build, "tasks_need_simulator", False):
            tasks[name] = _ask_worker(config, suites, name)
            continue
        suite: Suite = adapter.build(adapter.argument, plugins.configure(adapter, ref.config))
        tasks[name] = suite.tasks()
    return tasks


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


def _ask_worker(config: EvalConfig, suites: Mapping[str, Ref], name: str) -> Sequence[TaskInfo]:
    spec = WorkerSpec(suites=suites, python=config.env_python)
    with Fleet(build_runtime(config), spec, FleetConfig(lanes=1)) as fleet:
        return fleet.describe(name, timeout_s=300.0)
