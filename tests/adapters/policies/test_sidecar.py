"""Policies in a process of another interpreter."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.adapters.policies.sidecar import Sidecar, SidecarConfig
from hocket.core import plugins
from hocket.core.data import Batch, Row, Trial, noise_seed
from hocket.errors import ConfigError, PolicyError, PolicyUnavailableError
from hocket.system.waits import awaited
from hocket.testing import ScriptedPolicy
from support.processes import DEADLINE_S as WAIT_S
from support.processes import wait_gone, wait_until

HERE = Path(__file__).parent
POLICY = """
import os, sys, time
import numpy as np
from hocket.core.data import Actions
from hocket.core.specs import PolicySpec
from hocket.system.waits import awaiting

class Model:
    def __init__(self, *, scale: float = 1.0):
        print("loading", flush=True)
        self.scale = scale
        self.spec = PolicySpec(chunk_length=2, action_size=3, max_batch=8)

    def infer(self, batch):
        states = batch.arrays["observation/state"]
        if (states == 13).any():
            raise ValueError("unlucky")
        if (states == 99).any():
            print("I was told to die", file=sys.stderr, flush=True)
            os._exit(7)
        values = np.stack([[s.mean() * self.scale, os.getpid(), 0.0] for s in states])
        return Actions(np.repeat(values[:, None], 2, axis=1))

    def close(self):
        pass

class Slow(Model):
    def __init__(self, *, until: str):
        with awaiting("a model from far away"):
            while not os.path.exists(until):
                time.sleep(0.01)
        super().__init__()
"""


def make_batch(*values: float, image: int = 0) -> Batch:
    arrays: dict[str, Any] = {"observation/state": np.array(values, np.float32)[:, None]}
    if image:
        arrays["observation/image"] = np.full((len(values), image, image, 3), 7, np.uint8)
    trials = [Trial(suite="s", task="t", seed=int(value)) for value in values]
    rows = [
        Row(
            trial=trial,
            attempt=0,
            chunk=0,
            noise_seed=noise_seed(trial, 0),
            prompt="",
            session=trial.id,
        )
        for trial in trials
    ]
    return Batch(arrays=arrays, rows=tuple(rows))


Build = Callable[..., Sidecar]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    (tmp_path / "my_model.py").write_text(POLICY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    opened: list[Sidecar] = []

    def start(name: str = "my_model:Model", **settings: Any) -> Sidecar:
        opened.append(Sidecar(name, SidecarConfig(**{"ready_timeout_s": WAIT_S, **settings})))
        return opened[-1]

    yield start
    for policy in opened:
        policy.close()
        policy.close()


def test_policy_runs_in_a_process_of_its_own_with_its_settings(build: Build) -> None:
    policy = build(config={"scale": 10.0})
    assert (policy.spec.chunk_length, policy.spec.max_batch) == (2, 8)
    values = policy.infer(make_batch(1, 2, image=64)).values
    assert values[:, 0, 0].tolist() == [10, 20]
    assert values[0, 0, 1] != os.getpid()


def test_batches_of_any_size_share_memory_without_mixing(build: Build) -> None:
    policy = build()
    for size in (1, 64, 8, 256):
        for values in ((1, 2, 3), (4,), (5, 6, 7, 8)):
            answer = policy.infer(make_batch(*values, image=size)).values
            assert answer[:, 0, 0].tolist() == list(values)


def test_answers_equal_those_in_this_process(build: Build) -> None:
    settings = {"action_size": 3}
    there = build("scripted", config=settings)
    here = ScriptedPolicy("", ScriptedPolicy.Config(action_size=3))
    batch = make_batch(1, 2, 3)
    assert np.array_equal(there.infer(batch).values, np.asarray(here.infer(batch)))


def test_bad_row_leaves_the_process_alive(build: Build) -> None:
    policy = build()
    with pytest.raises(PolicyError, match="unlucky"):
        policy.infer(make_batch(13))
    assert policy.infer(make_batch(3)).values[0, 0, 0] == 3


def test_death_is_told_with_last_words_and_the_next_call_finds_a_new_process(build: Build) -> None:
    policy = build()
    first = policy.infer(make_batch(1)).values[0, 0, 1]
    with pytest.raises(PolicyUnavailableError, match=r"(?s)code 7.*told to die"):
        policy.infer(make_batch(99))
    again = policy.infer(make_batch(2)).values
    assert again[0, 0, 0] == 2
    assert again[0, 0, 1] != first


def test_policy_that_is_refused_tells_why_in_a_sentence(build: Build) -> None:
    with pytest.raises(ConfigError, match=r"^'random' takes nothing after its name, not 'x'\.$"):
        build("random:x").spec  # noqa: B018 - loads


def test_policy_that_cannot_be_loaded_tells_its_own_traceback(build: Build) -> None:
    with pytest.raises(PolicyUnavailableError, match=r"(?s)could not be loaded.*no_such_module"):
        build("no_such_module:Model").spec  # noqa: B018 - loads
    with pytest.raises(ConfigError, match="cannot be run"):
        build(python="/nonexistent/python").spec  # noqa: B018 - loads
    with pytest.raises(ConfigError, match="needs the policy's name"):
        build("")


def test_child_ends_with_its_parent_however_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_model.py").write_text(POLICY)
    temporary_files = tmp_path / "t"
    temporary_files.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary_files))
    monkeypatch.setenv("TMPDIR", str(temporary_files))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    script = (
        f"import sys, time; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parents[1])!r}]\n"
        "from hocket.adapters.policies.sidecar import Sidecar\n"
        "from test_sidecar import make_batch\n"
        "policy = Sidecar('my_model:Model')\n"
        "print(int(policy.infer(make_batch(1)).values[0, 0, 1]), flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    wait_gone([child])
    (left,) = temporary_files.glob("hocket-sidecar-*")
    again = Sidecar("my_model:Model", SidecarConfig(ready_timeout_s=WAIT_S))
    with contextlib.closing(again):
        assert again.infer(make_batch(1)).values.shape[0] == 1
        assert not left.exists(), "what a killed process left is swept by the next"
    assert list(temporary_files.iterdir()) == []


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that has numpy, and nothing of hocket's."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=100
    )
    (site,) = folder.glob("lib/python*/site-packages")
    packages = Path(np.__file__).parent.parent
    for name in ("numpy", "numpy.libs"):
        if (packages / name).exists():
            (site / name).symlink_to(packages / name)
    python = str(folder / "bin" / "python")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for absent in ("hocket", "msgpack", "websockets", "yaml", "gymnasium"):
        code = f"import {absent}"
        done = subprocess.run(
            [python, "-c", code], capture_output=True, check=False, timeout=60, env=clean
        )
        assert done.returncode, f"{absent} should not be there"
    return python


def test_interpreter_needs_nothing_of_hocket_s(build: Build, bare_python: str) -> None:
    policy = build(python=bare_python)
    assert policy.infer(make_batch(5, image=32)).values[0, 0, 0] == 5


def test_sidecar_is_found_by_its_name(build: Build) -> None:
    policy = plugins.build("policies", "sidecar:my_model:Model", {"config": {"scale": 2.0}})
    try:
        assert policy.infer(make_batch(4)).values[0, 0, 0] == 8
    finally:
        policy.close()


def test_what_a_policy_waits_for_while_it_loads_is_awaited_here(
    build: Build, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    policy = build("my_model:Slow", config={"until": str(done)})
    loading = threading.Thread(target=lambda: policy.spec)
    loading.start()
    try:
        wait_until(lambda: "a model from far away" in awaited())
    finally:
        done.touch()
        loading.join()
    assert "a model from far away" not in awaited()
    assert policy.spec.chunk_length == 2
