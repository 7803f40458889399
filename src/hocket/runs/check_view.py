"""How `hocket check` shows its findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hocket.core.data import Array, ArraySpec, EnvSpec

if TYPE_CHECKING:
    from hocket.runs.check import CheckResult

_NONE = "-"


def render(result: CheckResult) -> RenderableType:
    """Specs side by side, inputs, actions, then what is wrong."""
    parts: list[RenderableType] = [_sides(result), "", _inputs(result)]
    if result.sent is not None:
        parts += ["", _sent(result.sent)]
    if result.actions is not None and result.actions.ndim == 2:
        parts += ["", _actions(result.actions, result.env_spec)]
    parts.append("")
    parts += [Text(f"warning: {text}", style="yellow") for text in result.warnings]
    parts += [Text(f"problem: {text}", style="bold red") for text in result.problems]
    if not result.problems:
        parts.append(Text("Env and policy fit.", style="bold green"))
    return Group(*parts)


def _sides(result: CheckResult) -> Table:
    table = _table("", "env", "policy")
    env, policy, timing = result.env_spec, result.policy_spec, result.timing
    table.add_row("name", result.trial.id, result.policy)
    table.add_row(
        "action size",
        _NONE if env is None else f"{env.action.size} ({env.action.kind})",
        _or(policy.action_size, "any"),
    )
    table.add_row(
        "control rate",
        _rate(None if env is None else env.task.control_rate),
        _rate(policy.control_rate),
    )
    table.add_row(
        "chunk",
        _NONE if env is None else _limit(env.task.max_steps),
        f"{policy.chunk_length or 'any'} actions, {_or(policy.replan, 'all')} executed",
    )
    table.add_row(
        "cameras",
        _NONE if env is None else ", ".join(env.cameras) or "none",
        "all" if policy.cameras is None else ", ".join(policy.cameras) or "none",
    )
    table.add_row("history", _NONE, str(policy.history))
    table.add_row("abilities", _NONE if env is None else ", ".join(env.abilities) or "none", _NONE)
    if timing is not None:
        table.add_row(
            "time",
            f"{1e3 * timing.execute_s:.1f} ms a chunk",
            _latencies(timing.latencies),
        )
    table.add_row("prompt", repr(result.prompt), "")
    return table


def _inputs(result: CheckResult) -> Table:
    """The mapping: every key of either side, and what the policy got under it."""
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


def _sent(sent: Mapping[str, Any]) -> Table:
    """A request as the server receives it."""
    table = _table("sent to the server", "as", "min", "max", "mean")
    for key, value in sent.items():
        if isinstance(value, np.ndarray):
            shape = _shape(ArraySpec(shape=value.shape, dtype=value.dtype.str))
            table.add_row(key, shape, *_range(value))
        else:
            table.add_row(key, repr(value), *(_NONE,) * 3)
    return table


def _actions(actions: Array, env: EnvSpec | None) -> Table:
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
    """The smallest and the largest batch that were timed."""
    ends = sorted({min(seconds), max(seconds)}) if seconds else []
    return ", ".join(f"{1e3 * seconds[size]:.1f} ms a batch of {size}" for size in ends)


def _rate(rate: float | None) -> str:
    return _NONE if rate is None else f"{rate:g} Hz"


def _limit(max_steps: int | None) -> str:
    return "no limit of its own" if max_steps is None else f"limit {max_steps} steps"


def _or(value: object, default: str) -> str:
    return default if value is None else str(value)
