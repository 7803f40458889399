"""Conformance checks for suites."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from hocket.core.contracts.env import Suite
from hocket.core.data import TaskInfo
from hocket.testing.envs import env_findings
from hocket.testing.findings import Broken, Finding, conclude, require, try_rule

_SUCCESS_RULES = ("first", "any", "final")


def check_suite(
    suite: Suite,
    *,
    tasks: Sequence[str] | None = None,
    seeds: Sequence[int] = (0, 1),
    steps: int = 20,
) -> None:
    """Raise ConformanceError with every rule that a suite breaks, or the envs of these tasks (None
    takes the first)."""
    conclude("The suite", suite_findings(suite, tasks=tasks, seeds=seeds, steps=steps))


def suite_findings(
    suite: Suite,
    *,
    tasks: Sequence[str] | None = None,
    seeds: Sequence[int] = (0, 1),
    steps: int = 20,
) -> list[Finding]:
    """Every rule that a suite breaks, and those that the envs of these tasks break."""
    findings = try_rule(
        "tasks() lists sound TaskInfo, each name once.", functools.partial(_tasks, suite)
    )
    if findings:
        return findings
    findings += try_rule("tasks() says the same each time.", functools.partial(_steady, suite))
    findings += try_rule(
        "make() refuses a task that is not in tasks().", functools.partial(_unknown, suite)
    )
    for task in [suite.tasks()[0].name] if tasks is None else tasks:
        found = env_findings(functools.partial(suite.make, task), seeds=seeds, steps=steps)
        findings += [Finding(each.rule, f"(task {task!r}) {each.detail}") for each in found]
    return findings


def _tasks(suite: Suite) -> None:
    tasks = suite.tasks()
    require(bool(tasks), "There are none.")
    for task in tasks:
        require(isinstance(task, TaskInfo), f"{task!r} is no TaskInfo.")
        require(bool(task.name) and isinstance(task.name, str), f"{task!r} has no name.")
        require(isinstance(task.prompt, str), f"The prompt of {task.name!r} is {task.prompt!r}.")
        require(task.max_steps is None or task.max_steps >= 1, f"{task.name!r}: max_steps.")
        require(task.control_rate is None or task.control_rate > 0, f"{task.name!r}: control_rate.")
        require(
            task.success_rule in _SUCCESS_RULES,
            f"The success_rule of {task.name!r} is {task.success_rule!r}.",
        )
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"{twice} is there more than once.")


def _steady(suite: Suite) -> None:
    require(list(suite.tasks()) == list(suite.tasks()), "Two calls differ.")


def _unknown(suite: Suite) -> None:
    try:
        env = suite.make("no such task, surely")
    except Exception:  # noqa: BLE001 - how it refuses is the suite's own affair
        return
    env.close()
    raise Broken("It made an env.")
