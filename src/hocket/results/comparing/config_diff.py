"""What two runs differ in, in words: plans, the settings that make a trial, versions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hocket.core import plugins
from hocket.core.data import Trial
from hocket.core.plugins import share_settings
from hocket.errors import HocketError

_OURS = ("hocket", "python")
"""Versions that do not change what a trial is."""
_NOT_SUBJECT = ("env", "env_config", "episodes", "seed", "max_steps")
"""Settings that make the trials, and so are no part of what is compared."""
_SHOWN = 4
Sides = tuple[str, str]
IN_RUNS: Sides = ("in a", "in b")


def setting_differences(
    a: Mapping[str, Any], b: Mapping[str, Any], sides: Sides = IN_RUNS
) -> list[str]:
    """The settings that make trials of the same name different ones, one phrase each."""
    found = []
    if a.get("max_steps") != b.get("max_steps"):
        found.append(differs("max_steps", a.get("max_steps"), b.get("max_steps"), sides))
    if a.get("env_config") == b.get("env_config"):
        return found
    # What is not set has a default, which may be what the other run says.
    left, right = _effective(a), _effective(b)
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            found.append(differs(f"env setting {name}", left.get(name), right.get(name), sides))
    return found


def subject_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What a comparison is about: each setting that differs, with its value in a and in b."""
    left, right = _flat(a), _flat(b)
    return [
        (name, _shown(left.get(name)), _shown(right.get(name)))
        for name in dict.fromkeys([*left, *right])
        if left.get(name) != right.get(name) and name.partition(".")[0] not in _NOT_SUBJECT
    ]


def trial_differences(a: Sequence[Trial], b: Sequence[Trial]) -> list[str]:
    """The tasks and seeds that only one of two plans has, one phrase each."""
    found = []
    tasks_a, tasks_b = _seeds(a), _seeds(b)
    for letter, mine, other in (("a", tasks_a, tasks_b), ("b", tasks_b, tasks_a)):
        only = [" / ".join(task) for task in mine if task not in other]
        if only:
            found.append(f"only {letter} has {_listed('task', only)}")
    for letter, mine, other in (("a", tasks_a, tasks_b), ("b", tasks_b, tasks_a)):
        groups: dict[str, list[str]] = {}
        for task in mine.keys() & other.keys():
            only_seeds = mine[task] - other[task]
            if only_seeds:
                groups.setdefault(_ranges(only_seeds), []).append(task[1])
        common = len(mine.keys() & other.keys())
        for seeds, some in groups.items():
            where = "" if len(some) == common else f" of {_listed('task', sorted(some))}"
            found.append(f"only {letter} has seeds {seeds}{where}")
    return found


def version_differences(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """The packages whose versions differ and may change what a simulator does."""
    names = [name for name in dict.fromkeys([*a, *b]) if name not in _OURS]
    return [differs(n, a.get(n), b.get(n)) for n in names if a and b and a.get(n) != b.get(n)]


def _effective(config: Mapping[str, Any]) -> dict[str, Any]:
    """The env's settings with their defaults, where its adapter is one of the registered ones:
    reading a run imports no code that only the run names."""
    given = dict(config.get("env_config") or {})
    envs = [str(name) for name in config.get("env") or ()]
    if not envs or any(name.partition(":")[0] not in plugins.names("envs") for name in envs):
        return given
    try:
        for name, share in share_settings("envs", envs, given).items():
            adapter = plugins.find("envs", name)
            given = {**dataclasses.asdict(plugins.configure(adapter, share)), **given}
    except HocketError:
        return given
    return given


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": each for inner, each in _flat(value).items()}
        else:
            flat[key] = value
    return flat


def _seeds(trials: Sequence[Trial]) -> dict[tuple[str, str], set[tuple[int, int]]]:
    found: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for trial in trials:
        found.setdefault((trial.suite, trial.task), set()).add((trial.seed, trial.repeat))
    return found


def _ranges(seeds: Collection[tuple[int, int]]) -> str:
    """Seeds as text, such as `0 to 4, 9`; repeats are left unsaid."""
    runs: list[list[int]] = []
    for seed in sorted({seed for seed, _ in seeds}):
        if runs and seed == runs[-1][1] + 1:
            runs[-1][1] = seed
        else:
            runs.append([seed, seed])
    words = [str(low) if low == high else f"{low} to {high}" for low, high in runs]
    more = f" and {len(words) - _SHOWN:,} more ranges" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more


def _listed(noun: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"{noun if len(names) == 1 else noun + 's'} {', '.join(names[:_SHOWN])}{more}"


def differs(name: str, a: Any, b: Any, sides: Sides = IN_RUNS) -> str:
    """A difference in words; `sides` say where each value is."""
    return f"{name} is {_shown(a)} {sides[0]}, {_shown(b)} {sides[1]}"


def _shown(value: Any) -> str:
    return "not set" if value in (None, "") else str(value)
