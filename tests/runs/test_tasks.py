"""A suite's tasks are told apart, and there are some."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.core.specs import TaskInfo
from hocket.errors import EnvError


class Named:
    """A suite of the tasks that it is told."""

    names: tuple[str, ...] = ()

    def __init__(self, argument: str = "", config: Any = None) -> None: ...

    def tasks(self) -> Sequence[TaskInfo]:
        return [TaskInfo(name=name, max_steps=3) for name in self.names]

    def make(self, task: str) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("names", "told"),
    [((), "has no tasks, so that there is nothing to run"), (("a", "b", "a"), "called 'a'")],
)
def test_a_suite_without_tasks_or_with_two_of_one_name_is_refused(
    names: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Named, "names", names)
    monkeypatch.setitem(sys.modules, "named_suite", sys.modules[__name__])
    with pytest.raises(EnvError, match=told):
        hocket.evaluate(
            env="named_suite:Named",
            policy="zero",
            runtime="inline",
            episodes=2,
            out=tmp_path / "run",
        )
