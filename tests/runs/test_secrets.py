"""What is secret reaches workers, and nothing that is kept or shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.core.events import AttemptsBegan, Event
from hocket.errors import ConfigError
from hocket.runs.checks.card import write_card
from hocket.runs.config import EvalConfig
from hocket.runs.evaluation import resume
from hocket.workers.inline import InlineRuntime
from hocket.workers.variables import Variables
from support.podman import IMAGE, config, podman

__all__ = ["podman"]
VALUE = "sesame-open-please"
ENV = f"""
import os
import numpy as np
from gymnasium import Env, spaces

class Door(Env):
    observation_space = spaces.Box(-9, 9, (2,), np.float64)
    action_space = spaces.Box(-1, 1, (2,), np.float64)
    max_steps = 3

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2), {{}}

    def step(self, action):
        is_told = os.environ.get("DOOR_TOKEN") == {VALUE[::-1]!r}[::-1]
        return np.zeros(2), 0.0, False, False, {{"success": is_told}}
"""


class Telling(InlineRuntime):
    """Workers here, which are told variables as those in containers are."""

    Config = Variables

    def __init__(self, argument: str = "", config: Variables | None = None) -> None:
        super().__init__()
        os.environ.update((config or Variables()).secrets())


class Stop:
    """A reader that stops the run as Ctrl-C does, once one of its attempts has begun."""

    hears = (AttemptsBegan,)

    def on(self, event: Event) -> None:
        if isinstance(event, AttemptsBegan) and event.trials[0].seed:
            raise KeyboardInterrupt

    def close(self) -> None: ...


def settings(**more: Any) -> dict[str, Any]:
    return {"env": "doors.py:Door", "policy": "random", "episodes": 3, "lanes": 1, **more}


def holders(folder: Path) -> list[Path]:
    """The files that hold the value."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if VALUE.encode() in path.read_bytes()]


@pytest.fixture
def doors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("doors.py").write_text(ENV)
    monkeypatch.setenv("DOOR_TOKEN", VALUE)
    return tmp_path


def test_a_secret_stands_in_no_file_of_a_run_and_is_asked_for_again_at_resume(
    doors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = {"runtime": "runs.test_secrets:Telling", "runtime_config": {"secret": ["DOOR_TOKEN"]}}
    begun = hocket.evaluate(**settings(out=doors / "run", readers=[Stop()], **runtime))
    assert not begun.complete
    monkeypatch.delenv("DOOR_TOKEN")
    with pytest.raises(ConfigError, match="there is no variable DOOR_TOKEN here"):
        resume(doors / "run")
    monkeypatch.setenv("DOOR_TOKEN", VALUE)
    report = resume(doors / "run")
    assert report.overall.rate == 1.0
    write_card(doors / "run", doors / "card")
    assert "DOOR_TOKEN" in (doors / "card" / "card.json").read_text()
    assert holders(doors) == []


@pytest.mark.parametrize(
    "given",
    ["API_TOKEN=x", "my_key=x", "Secret=", "DB_PASSWORD_2=x", "HF_TOKEN=a=b"],
)
def test_a_value_of_what_looks_like_a_secret_is_refused_with_the_flag_for_it(given: str) -> None:
    with pytest.raises(ConfigError, match=r"--runtime\.secret") as refused:
        EvalConfig(**settings(env=("x",), runtime="podman:x", runtime_config={"env": (given,)}))
    name, _, value = given.partition("=")
    assert f"--runtime.secret {name}" in str(refused.value)
    assert not value or f"={value}" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("podman")
def test_a_container_gets_a_secret_that_no_process_has_among_its_arguments(doors: Path) -> None:
    seen: list[bytes] = []

    class Look(Stop):
        def on(self, event: Event) -> None:
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.append(path.read_bytes())
                except OSError:
                    continue

    plain = config()
    told = {
        "python": plain.python,
        "mounts": [*plain.mounts, f"{doors}:{doors}:ro"],
        "secret": ["DOOR_TOKEN"],
    }
    report = hocket.evaluate(
        **settings(
            env=f"{doors}/doors.py:Door",
            runtime=f"podman:{IMAGE}",
            runtime_config=told,
            video="none",
            out=doors / "run",
            readers=[Look()],
        )
    )
    assert report.overall.rate == 1.0
    assert any(b"DOOR_TOKEN" in words for words in seen)
    assert not any(VALUE.encode() in words for words in seen)
    assert holders(doors) == []
