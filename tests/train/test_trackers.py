"""Trackers are told the curves, whatever axis they know of."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hocket.core import plugins
from hocket.core.contracts.recorder import Followed
from hocket.core.events import Measured


@pytest.mark.parametrize(("name", "step"), [("wandb", {}), ("trackio", {"step": 40})])
def test_a_tracker_is_told_values_at_env_steps(
    monkeypatch: pytest.MonkeyPatch, name: str, step: dict[str, int]
) -> None:
    told: list[Any] = []
    begun = SimpleNamespace(
        log=lambda values, **more: told.append((values, more)),
        finish=lambda: told.append("finished"),
        define_metric=lambda *_, **how: told.append(how),
    )
    stand_in = SimpleNamespace(init=lambda **about: told.append(about) or begun)
    monkeypatch.setitem(sys.modules, name, stand_in)
    run = Followed(folder=Path("runs/x"), config={"lr": 1.0}, resumed_at=None)
    tracker: Any = plugins.load("readers", name)("mine", run)
    tracker.on(Measured(env_steps=40, values={"train/return": 1.5}))
    tracker.close()
    tracker.close()
    axis = [{"step_metric": "env_steps"}] if name == "wandb" else []
    assert told == [
        {"project": "mine", "name": "x", "config": {"lr": 1.0}},
        *axis,
        ({"train/return": 1.5, "env_steps": 40}, step),
        "finished",
    ]
