"""What is found out about an evaluation before anything runs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import MissingExtraError, UsageError
from hocket.runs.assembly import Assembly
from hocket.system.interpreter import examine_python
from hocket.workers.fleet import Fleet
from support.heard import Heard


def interpreter(place: Path, *packages: str) -> str:
    """An interpreter with these packages of ours, and no others."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (site,) = (place / "lib").glob("python*/site-packages")
    for package in packages:
        libraries = Path(np.__file__).parents[1] / f"{package}.libs"
        if libraries.exists():
            (site / libraries.name).symlink_to(libraries)
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        (site / source.name).symlink_to(source)
    return str(place / "bin" / "python")


@pytest.fixture(scope="module")
def simulators(tmp_path_factory: pytest.TempPathFactory) -> str:
    needs = ("numpy", "gymnasium", "cloudpickle", "farama_notifications", "typing_extensions")
    return interpreter(tmp_path_factory.mktemp("simulators") / "venv", *needs)


def test_an_interpreter_tells_what_it_lacks(simulators: str) -> None:
    assert examine_python(simulators, "json", "av") == ["av"]
    assert examine_python(sys.executable, "av") == []


def test_an_interpreter_that_cannot_host_envs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no Python interpreter at '/no/such/python'"):
        examine_python("/no/such/python")
    with pytest.raises(UsageError, match="'/bin/ls' is no Python interpreter"):
        examine_python("/bin/ls")
    bare = interpreter(tmp_path / "bare")
    with pytest.raises(UsageError, match=r"lacks numpy. Run: .*pip install numpy"):
        examine_python(bare)


def test_an_interpreter_needs_nothing_of_hockets_installed(simulators: str, tmp_path: Path) -> None:
    heard = Heard()
    report = hocket.evaluate(
        env="gym:Pendulum-v1",
        policy="random",
        episodes=1,
        max_steps=20,
        lanes=2,
        env_python=simulators,
        out=tmp_path / "run",
        readers=[heard],
    )
    assert report.overall.errors == 0
    assert ["No videos" in text for text in heard.notes] == [True]


def test_videos_that_were_asked_for_are_not_left_out_in_silence(
    simulators: str, tmp_path: Path
) -> None:
    with pytest.raises(MissingExtraError, match="pip install 'av"):
        hocket.evaluate(
            env="toy:count",
            policy="random",
            episodes=1,
            video="all",
            env_python=simulators,
            out=tmp_path / "run",
        )


def test_a_run_has_one_assembly_which_asks_a_worker_for_its_tasks_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counter[str]()

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return method(*args, **kwargs)

        return call

    monkeypatch.setattr(Assembly, "__init__", counted("assemblies", Assembly.__init__))
    monkeypatch.setattr(Fleet, "describe", counted("asked", Fleet.describe))
    common: dict[str, Any] = {
        "env": "support.deciding_env:make",
        "env_config": {"folder": str(tmp_path)},
        "policy": "zero",
        "episodes": 3,
    }
    hocket.evaluate(out=tmp_path / "a", lanes=1, **common)
    assert counts == {"assemblies": 1, "asked": 1}
    against = str(tmp_path / "a")
    hocket.evaluate(out=tmp_path / "b", lanes=1, until="decided", against=against, **common)
    assert counts == {"assemblies": 2, "asked": 2}
