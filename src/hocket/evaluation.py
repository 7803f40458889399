"""Evaluates a policy: plans trials, runs them, and says what came of it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hocket import config as run_config
from hocket import machine, plugins
from hocket.batches import BatchConfig, Batches
from hocket.check import check_specs
from hocket.contracts import Policy, Reader, Replicas, Runtime, Suite, WorkerSpec
from hocket.data import EnvSpec, Ref, TaskInfo, Trial
from hocket.engine import Engine, EngineConfig
from hocket.errors import ConfigError, SpecMismatchError, UsageError
from hocket.fleet.fleet import Fleet, FleetConfig
from hocket.inference import Inference
from hocket.probe import probe
from hocket.replay import make_rule
from hocket.report import Report
from hocket.scheduler import Scheduler, SchedulerConfig
from hocket.tally import Tally
from hocket.trials import TrialQueue
from hocket.version import VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Everything that an evaluation is; saved with the run, and enough to run it again."""

    env: tuple[str, ...]
    policy: str
    episodes: int = 10
    """Of each task."""
    seed: int = 0
    """Of each task's first episode; the next ones count up."""
    lanes: int | Literal["auto"] = "auto"
    replan: int | None = None
    ensemble: float | None = None
    exact: bool = False
    max_steps: int | None = None
    retries: int = 2
    step_timeout_s: float = 60.0
    worker_memory: int | None = None
    recycle_after: int | None = None
    env_python: str | None = None
    policy_devices: tuple[str, ...] = ()
    env_config: Mapping[str, Any] = field(default_factory=dict)
    policy_config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, low in (("episodes", 1), ("retries", 0), ("max_steps", 1), ("recycle_after", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} is {value}; it must be at least {low}.")
        if not self.env:
            raise ConfigError("No env is named. Give one, as in --env metaworld:mt10.")
        if len(set(self.env)) < len(self.env):
            raise ConfigError(f"An env is named twice in {', '.join(self.env)}.")
        if self.lanes != "auto" and self.lanes < 1:
            raise ConfigError(f"lanes is {self.lanes}; it must be at least 1, or 'auto'.")
        if self.step_timeout_s <= 0:
            raise ConfigError(f"step_timeout_s is {self.step_timeout_s}; it must be above 0.")
        make_rule(self.replan, self.ensemble)

    def to_plain(self) -> dict[str, Any]:
        """As values that YAML and JSON know."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {key: _plain(value) for key, value in plain.items()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> EvalConfig:
        """From plain values; unknown keys are errors."""
        known = [f.name for f in dataclasses.fields(cls)]
        for key in plain:
            if key not in known:
                raise ConfigError(
                    f"A run has no setting {key!r}.{plugins.did_you_mean(key, known)}"
                )
        values = dict(plain)
        for key in ("env", "policy_devices"):
            value = values.get(key)
            if isinstance(value, str):
                values[key] = tuple(part for part in value.split(",") if part)
            elif value is not None:
                values[key] = tuple(value)
        try:
            return cls(**values)
        except TypeError as exc:
            raise ConfigError(f"The configuration is wrong: {exc}") from exc


def evaluate(
    *,
    env: str | Sequence[str] | Callable[..., Any],
    policy: str | Policy,
    out: str | Path | None = None,
    readers: Sequence[Reader] = (),
    **settings: Any,
) -> Report:
    """Evaluate a policy and return the Report.

    `policy` is a name or a live object; `env` a name, several names, or an importable factory of
    yours. Further settings are those of EvalConfig: episodes, seed, lanes, replan ... A run folder
    is written where `out` says, and nowhere without it.
    """
    names = (env,) if isinstance(env, str) or callable(env) else tuple(env)
    config = EvalConfig.from_plain(
        {
            "env": tuple(name if isinstance(name, str) else name_of(name) for name in names),
            "policy": policy if isinstance(policy, str) else _object_name(policy),
            **settings,
        }
    )
    live = None if isinstance(policy, str) else policy
    folder = Path(out) if out is not None else None
    return run_evaluation(config, out=folder, policy=live, readers=readers)


def name_of(factory: Callable[..., Any]) -> str:
    """`module:attr` of an env factory that workers can import; an error says why they cannot."""
    module, path = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "<")
    main_file = inspect.getsourcefile(factory) if inspect.isroutine(factory) else None
    if module == "__main__" or module is None or "<" in path:
        raise UsageError(
            f"Workers cannot import {path!r}"
            f"{f' of {main_file}' if main_file else ''}: it lives in the running script or inside "
            "a function. Put it into a module and pass 'module:name'."
        )
    return f"{module}:{path}"


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
    """The policy that the configuration names."""
    built: Policy = plugins.build("policies", config.policy, config.policy_config)
    return built


def run_evaluation(
    config: EvalConfig,
    *,
    out: Path | None,
    policy: Policy | None = None,
    readers: Sequence[Reader] = (),
    check: bool = True,
) -> Report:
    """Run every planned trial; after an interruption the Report says that it is not complete."""
    suites = suites_of(config)
    trials = plan_trials(config)
    with contextlib.ExitStack() as stack:
        if policy is None:
            policy = build_policy(config)
            stack.callback(policy.close)
        _refuse_long_replan(config, policy)
        worker = worker_spec(config, suites, policy)
        lanes = config.lanes
        if lanes == "auto":
            lanes = _auto_lanes(config, worker, policy, trials)
        exactness = policy.spec.exactness(padded=config.exact)
        if out is not None:
            about = {**run_config.about_this_run(), "exactness": exactness, "lanes": lanes}
            run_config.save_run(out, config.to_plain(), about=about)
        tally = _run(
            config,
            fleet=Fleet(_runtime(config), worker, _fleet_config(config, lanes)),
            policy=policy,
            trials=trials,
            readers=readers,
            fits=_refuse_misfits(policy) if check else lambda _: None,
        )
    report = Report.build(
        config=config.to_plain(),
        exactness=exactness,
        trials=trials,
        episodes=tally.episodes,
        throughput=tally.throughput(),
        version=VERSION,
    )
    if out is not None:
        report.save(out)
    return report


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


def _run(
    config: EvalConfig,
    *,
    fleet: Fleet,
    policy: Policy,
    trials: Sequence[Trial],
    readers: Sequence[Reader],
    fits: Callable[[EnvSpec], None],
) -> Tally:
    cores = machine.cores()
    replicas = _replicas(config, policy)
    inference = Inference([p for p, _ in replicas], [name for _, name in replicas])
    tally = Tally(inference.concurrency)
    with fleet, contextlib.closing(inference):
        scheduler = Scheduler(
            SchedulerConfig(
                cores=cores,
                max_batch=policy.spec.max_batch,
                concurrency=inference.concurrency,
            )
        )
        engine = Engine(
            fleet=fleet,
            inference=inference,
            batches=Batches(policy, inference, scheduler, BatchConfig(pad=config.exact)),
            make_rule=make_rule(config.replan or policy.spec.replan, config.ensemble),
            config=EngineConfig(retries=config.retries, max_steps=config.max_steps),
            readers=(tally, *readers),
            fits=fits,
        )
        engine.run(TrialQueue(trials), planned=trials, cores=cores)
    return tally


def _refuse_long_replan(config: EvalConfig, policy: Policy) -> None:
    length = policy.spec.chunk_length
    if config.replan is not None and 0 < length < config.replan:
        raise ConfigError(
            f"replan is {config.replan}, but a chunk of policy {config.policy!r} has only {length} "
            f"actions. Choose at most {length}."
        )


def _refuse_misfits(policy: Policy) -> Callable[[EnvSpec], None]:
    def fits(spec: EnvSpec) -> None:
        problems = check_specs(policy.spec, spec)
        if problems:
            raise SpecMismatchError(
                f"Env task {spec.task.name!r} and the policy do not fit: {'; '.join(problems)} "
                "`hocket check` shows both side by side."
            )

    return fits


def _replicas(config: EvalConfig, policy: Policy) -> list[tuple[Policy, str]]:
    if not config.policy_devices:
        return [(policy, config.policy)]
    if not isinstance(policy, Replicas):
        raise UsageError(
            f"Policy {config.policy!r} cannot stand on several devices; leave out --policy-devices."
        )
    replicas = policy.replicas(config.policy_devices)
    return list(zip(replicas, config.policy_devices, strict=True))


def _runtime(config: EvalConfig) -> Runtime:
    """One lane that was asked for runs here, where `breakpoint()` works; all others in workers."""
    is_inline = config.lanes == 1 and config.env_python is None
    built: Runtime = plugins.build("runtimes", "inline" if is_inline else "local")
    return built


def _auto_lanes(
    config: EvalConfig, worker: WorkerSpec, policy: Policy, trials: Sequence[Trial]
) -> int:
    seen = probe(_runtime(config), worker, policy, trials[0], replan=config.replan)
    _refuse_misfits(policy)(seen.spec)
    return seen.lanes(
        cores=machine.cores(),
        memory=machine.memory_bytes(),
        trials=len(trials),
        policy=policy,
    )


def _fleet_config(config: EvalConfig, lanes: int) -> FleetConfig:
    return FleetConfig(
        lanes=lanes,
        step_timeout_s=config.step_timeout_s,
        worker_memory=config.worker_memory,
        recycle_after=config.recycle_after,
    )


def _ask_worker(config: EvalConfig, suites: Mapping[str, Ref], name: str) -> Sequence[TaskInfo]:
    spec = WorkerSpec(suites=suites, python=config.env_python)
    with Fleet(_runtime(config), spec, FleetConfig(lanes=1)) as fleet:
        return fleet.describe(name, timeout_s=300.0)


def _object_name(policy: Policy) -> str:
    kind = type(policy)
    return f"{kind.__module__}:{kind.__qualname__}"


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
