"""Finds out if an env and a policy fit each other, and what the policy really sees.

`run_check` compares what both say of themselves, runs one chunk through the same path as an
evaluation and keeps the very arrays that the policy was given: an image upside down or a
gripper with the wrong sign fits every specification, and shows only there. It resets the trial
again, there, in a new env and after an episode: an env that ignores its seed, or remembers, gives
results that cannot be repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.core import plugins
from hocket.core.contracts.policy import Binds, Policy, Sends, Sessions
from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Actions, Answer, Array, Batch, Row, Trial
from hocket.core.plugins import did_you_mean
from hocket.core.specs import ArraySpec, EnvSpec, PolicySpec
from hocket.engine.inferring.policy_thread import PolicyThread
from hocket.errors import EnvError, PolicyError, UnknownNameError, WorkerFailed
from hocket.runs.checks.starts import StartFindings, examine_starts
from hocket.runs.checks.training_data import Given, Mistake, compare, opened
from hocket.runs.probe import Probe, check_specs, probe
from hocket.workers.sinks.pictures import contact_sheet, is_picture, write_png

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from hocket.runs.assembly import Assembly
    from hocket.runs.config import EvalConfig

_NONE = "-"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckResult:
    """What one chunk showed. `problems` are mismatches; `warnings` are worth a look."""

    policy: str
    trial: Trial
    policy_spec: PolicySpec
    env_spec: EnvSpec | None
    """The env's spec; None where it did not come up."""
    inputs: Mapping[str, Array]
    """The policy's own row of the batch, without the batch's axis; empty where it never came to
    an inference."""
    prompt: str
    sent: Mapping[str, Any] | None = None
    """What a policy that lives elsewhere sends there for that row, with slash keys."""
    actions: Array | None
    """The chunk `[T, A]` that the policy answered."""
    timing: Probe | None
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    mistakes: tuple[Mistake, ...] = ()
    """What is otherwise than in the data that the policy was trained on, the likeliest first."""

    @property
    def pictures(self) -> dict[str, Array]:
        """Every image that the policy gets, or its server; those of a history one by one, oldest
        first."""
        found = {}
        for key, array in (self.inputs if self.sent is None else self.sent).items():
            if not isinstance(array, np.ndarray):
                continue
            if is_picture(array):
                found[key] = array
            elif array.ndim == 4 and is_picture(array[0]):
                found.update({f"{key} [{i}]": frame for i, frame in enumerate(array)})
        beside = [mistake.pictures for mistake in self.mistakes]
        return {name: one for some in (*beside, found) for name, one in some.items()}

    def save_contact_sheet(self, path: Path) -> bool:
        """Write the images that the policy was given as one PNG; false where it reads none."""
        pictures = self.pictures
        if pictures:
            write_png(path, contact_sheet(pictures))
        return bool(pictures)

    def render(self) -> RenderableType:
        """Show both specs side by side, inputs and actions in tables, then what is wrong."""
        from rich.console import Group
        from rich.text import Text

        parts: list[RenderableType] = [_side_table(self), "", _input_table(self)]
        if self.sent is not None:
            parts += ["", _sent_table(self.sent)]
        if self.actions is not None and self.actions.ndim == 2:
            parts += ["", _action_table(self.actions, self.env_spec)]
        parts.append("")
        parts += [Text(f"warning: {text}", style="yellow") for text in self.warnings]
        parts += [Text(f"problem: {text}", style="bold red") for text in self.problems]
        for number, mistake in enumerate(self.mistakes, 1):
            parts.append(Text(f"{number}. {mistake.text}", style="bold red"))
        if not self.problems and not self.mistakes:
            parts.append(Text("Env and policy fit.", style="bold green"))
        return Group(*parts)


def run_check(
    config: EvalConfig,
    *,
    suite: str | None = None,
    task: str | None = None,
    data: Path | None = None,
) -> CheckResult:
    """Run the first chunk of one task (the first, by default) and keep what the policy saw; with
    `data` also compare it with the LeRobot dataset that the policy was trained on."""
    from hocket.runs.assembly import Assembly

    dataset = None if data is None else opened(data)
    suite = suite or config.env[0]
    shares = plugins.share_settings("envs", config.env, config.env_config)
    assembly = Assembly(replace(config, env=(suite,), env_config=shares[suite]), lanes=1)
    trial = _first_trial(assembly, suite, task, config.seed)
    with contextlib.ExitStack() as stack:
        policy = assembly.policy([trial])
        stack.callback(policy.close)
        runtime = assembly.runtime()
        stack.callback(runtime.close)
        witness = _Witness(policy)
        worker = assembly.worker(policy.spec)
        timing, errors = None, []
        try:
            timing = probe(
                runtime, worker, witness, trial, name=config.policy, replan=config.replan
            )
        except (EnvError, PolicyError, WorkerFailed) as error:
            errors.append(str(error))
        spec = witness.env or _describe(runtime, worker, policy, trial)
        starts, mistakes = StartFindings(), []
        if timing is not None:
            # Some batched simulators can be made but once in a process.
            elsewhere = assembly.runtime(apart=True) if assembly.is_batched else runtime
            stack.callback(elsewhere.close)
            thread = PolicyThread(witness, config.policy)
            starts = examine_starts(elsewhere, worker, trial, thread)
            if dataset is not None and spec is not None:
                past = policy.spec.history > 1
                given = Given(
                    inputs={k: v[-1] if past else v for k, v in witness.inputs.items()},
                    prompt=witness.prompt,
                    spec=spec,
                    trial=trial,
                    policy=policy,
                    keys=config.policy_config.get("keys", {}),
                )
                mistakes = compare(dataset, given, elsewhere, worker)
        problems = [] if spec is None else check_specs(witness.spec, spec, config.policy)
        warnings = [*starts.warnings]
        if spec is not None:
            warnings = [*action_warnings(witness.actions, spec), *warnings, *spec.notes]
        if dataset is not None and timing is None:
            warnings.append("Nothing was compared with --data: the policy must fit the env first.")
        return CheckResult(
            policy=config.policy,
            trial=trial,
            policy_spec=witness.spec,
            env_spec=spec,
            inputs=witness.inputs,
            prompt=witness.prompt,
            sent=witness.sent,
            actions=witness.actions,
            timing=timing,
            # An env that lacks a key says so itself as well; the comparison says it better.
            problems=tuple(problems or [*errors, *starts.problems]),
            warnings=tuple(warnings),
            mistakes=tuple(mistakes),
        )


def _first_trial(assembly: Assembly, suite: str, task: str | None, seed: int) -> Trial:
    """The trial of a task, or of the suite's first."""
    names = [info.name for info in assembly.tasks_of(suite)]
    if task is not None and task not in names:
        raise UnknownNameError(
            f"{suite!r} has no task {task!r}.{did_you_mean(task, names)} It has: "
            f"{', '.join(names)}."
        )
    return Trial(suite=suite, task=task or names[0], seed=seed)


def _describe(runtime: Runtime, worker: WorkerSpec, policy: Policy, trial: Trial) -> EnvSpec | None:
    """The spec of an env that refused what the policy reads: it is asked without that, and the
    policy not at all."""
    found: list[EnvSpec] = []

    def keep(spec: EnvSpec) -> None:
        found.append(spec)
        raise PolicyError("It is not asked.")

    with contextlib.suppress(EnvError, PolicyError, WorkerFailed):
        open_worker = replace(worker, reads=None, cameras=None, history=1)
        probe(runtime, open_worker, policy, trial, name="", replan=None, fits=keep)
    return found[0] if found else None


def action_warnings(actions: Array | None, env: EnvSpec) -> list[str]:
    """Say in sentences what is odd about a chunk `[T, A]`, given the env's bounds."""
    low, high = env.action.low.ravel(), env.action.high.ravel()
    if actions is None or actions.ndim != 2 or actions.shape[1] != len(low):
        return []
    outside = ((actions < low) | (actions > high)).mean(axis=0)
    found = []
    for dim in np.flatnonzero(outside):
        found.append(
            f"Action {dim}: {100 * outside[dim]:.0f} % of the chunk lies outside "
            f"[{low[dim]:g}, {high[dim]:g}] (from {actions[:, dim].min():g} to "
            f"{actions[:, dim].max():g}). Is it normalised as the env expects?"
        )
    constant = np.flatnonzero(np.ptp(actions, axis=0) == 0)
    if len(constant) and len(actions) > 1:
        found.append(f"Constant over the chunk: action {', '.join(map(str, constant))}.")
    return found


class _Witness:
    """A policy that asks another, and keeps the first row of what goes in and comes out."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.env: EnvSpec | None = None
        self.inputs: dict[str, Array] = {}
        self.prompt = ""
        self.sent: dict[str, Any] | None = None
        self.actions: Array | None = None

    @property
    def spec(self) -> PolicySpec:
        return self._policy.spec

    def bind(self, spec: EnvSpec) -> None:
        self.env = spec
        if isinstance(self._policy, Binds):
            self._policy.bind(spec)

    def begin_session(self, row: Row) -> None:
        if isinstance(self._policy, Sessions):
            self._policy.begin_session(row)

    def end_session(self, session: str) -> None:
        if isinstance(self._policy, Sessions):
            self._policy.end_session(session)

    def infer(self, batch: Batch) -> Answer:
        is_first = not self.inputs
        if is_first:
            self.inputs = {key: np.array(array[0]) for key, array in batch.arrays.items()}
            self.prompt = batch.rows[0].prompt
            if isinstance(self._policy, Sends):
                self.sent = _flat(self._policy.request(self.inputs, self.prompt))
        answer = self._policy.infer(batch)
        if is_first:
            values: Any = answer.values if isinstance(answer, Actions) else answer
            if getattr(values, "ndim", 0) == 3:
                self.actions = np.asarray(values)[0]
        return answer

    def close(self) -> None:
        self._policy.close()


def _flat(request: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    """The request with slash keys instead of nested maps, and with copies of its arrays."""
    found: dict[str, Any] = {}
    for key, value in request.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{head}{key}/"))
        else:
            found[f"{head}{key}"] = np.array(value) if isinstance(value, np.ndarray) else value
    return found


# -- tables for rich ---------------------------------------------------------------------------


def _side_table(result: CheckResult) -> Table:
    table = _table("", "env", "policy")
    env, policy, timing = result.env_spec, result.policy_spec, result.timing
    ours = [_NONE] * 6
    if env is not None:
        steps = env.task.max_steps
        ours = [
            f"{env.action.size} ({env.action.kind})",
            _rate(env.task.control_rate),
            "no limit of its own" if steps is None else f"limit {steps} steps",
            ", ".join(env.cameras) or "none",
            _NONE,
            ", ".join(env.abilities) or "none",
        ]
    executed = "all" if policy.replan is None else policy.replan
    theirs = [
        "any" if policy.action_size is None else str(policy.action_size),
        _rate(policy.control_rate),
        f"{policy.chunk_length or 'any'} actions, {executed} executed",
        "all" if policy.cameras is None else ", ".join(policy.cameras) or "none",
        str(policy.history),
        _NONE,
    ]
    names = ("action size", "control rate", "chunk", "cameras", "history", "abilities")
    table.add_row("name", result.trial.id, result.policy)
    for row in zip(names, ours, theirs, strict=True):
        table.add_row(*row)
    if timing is not None:
        executes = f"{1e3 * timing.execute_s:.1f} ms a chunk"
        table.add_row("time", executes, _latencies(timing.latencies))
    table.add_row("prompt", repr(result.prompt), "")
    return table


def _input_table(result: CheckResult) -> Table:
    """A table of every key of either side, and of what the policy got under it."""
    table = _table("observation", "env gives", "policy wants", "min", "max", "mean")
    wanted = result.policy_spec.inputs
    given = {} if result.env_spec is None else result.env_spec.observations
    for key in sorted({*given, *(wanted or {}), *result.inputs} - {"prompt"}):
        array = result.inputs.get(key)
        want = "any" if wanted is None else "not read"
        if wanted is not None and key in wanted:
            want = _shape(wanted[key])
        gives = _shape(given[key]) if key in given else "missing"
        table.add_row(key, gives, want, *(_NONE,) * 3 if array is None else _range(array))
    return table


def _sent_table(sent: Mapping[str, Any]) -> Table:
    """A table of the request as the server receives it."""
    table = _table("sent to the server", "as", "min", "max", "mean")
    for key, value in sent.items():
        if isinstance(value, np.ndarray):
            shape = _shape(ArraySpec(shape=value.shape, dtype=value.dtype.str))
            table.add_row(key, shape, *_range(value))
        else:
            table.add_row(key, repr(value), *(_NONE,) * 3)
    return table


def _action_table(actions: Array, env: EnvSpec | None) -> Table:
    table = _table("action", "bounds", "min", "max", "mean", "outside", "")
    for dim in range(actions.shape[1]):
        values, bounds, outside = actions[:, dim], _NONE, _NONE
        if env is not None and env.action.size == actions.shape[1]:
            low, high = env.action.low.ravel()[dim], env.action.high.ravel()[dim]
            bounds = f"{low:g} to {high:g}"
            outside = f"{100 * ((values < low) | (values > high)).mean():.0f} %"
        note = "constant" if len(values) > 1 and np.ptp(values) == 0 else ""
        if dim == actions.shape[1] - 1 and dim > 2:
            note = f"{note}; often the gripper: is its sign right?".lstrip("; ")
        table.add_row(str(dim), bounds, *_range(values), outside, note)
    return table


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        is_number = column in ("min", "max", "mean", "outside")
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    return table


def _shape(spec: ArraySpec) -> str:
    dtype = np.dtype(spec.dtype).name if spec.dtype else "any"
    return f"{'x'.join('?' if n == -1 else str(n) for n in spec.shape) or 'scalar'} {dtype}"


def _range(values: Array) -> tuple[str, str, str]:
    if values.size == 0 or values.dtype.kind not in "biuf":
        return _NONE, _NONE, _NONE
    return f"{values.min():.4g}", f"{values.max():.4g}", f"{values.mean():.4g}"


def _latencies(seconds: Mapping[int, float]) -> str:
    """How long the smallest and the largest batch took that were timed."""
    ends = sorted({min(seconds), max(seconds)}) if seconds else []
    return ", ".join(f"{1e3 * seconds[size]:.1f} ms a batch of {size}" for size in ends)


def _rate(rate: float | None) -> str:
    return _NONE if rate is None else f"{rate:g} Hz"
