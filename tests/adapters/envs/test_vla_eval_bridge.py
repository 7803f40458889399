"""vla-eval's benchmarks in a process of their own, with another Python, and in an image."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.adapters.envs import vla_eval_stage
from hocket.adapters.envs.vla_eval import VlaEvalBenchmark
from hocket.errors import EnvError, HocketError
from hocket.results.report import Report
from hocket.testing import check_suite
from support.old_python import lay_out, make_old_python
from support.parts import needs_venv
from support.podman import IMAGE, containers, mounts, podman
from support.processes import DEADLINE_S, wait_until

__all__ = ["podman"]
STAGE = vla_eval_stage.__file__
NAME = "vla-eval:robocerebra"
pytestmark = needs_venv("vla-eval")
OLD = pytest.param("old", marks=pytest.mark.slow)


@pytest.fixture(scope="session")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_old_python(tmp_path_factory.mktemp("old") / "venv")


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("packages"), "robocerebra")


@contextmanager
def serving(folder: Path, python: str, packages: Path) -> Iterator[str]:
    """The path of a socket behind which an interpreter runs benchmarks."""
    path = folder / "bridge"
    served = subprocess.Popen(
        [python, STAGE, str(path)], cwd=folder, env={**os.environ, "PYTHONPATH": str(packages)}
    )
    try:
        wait_until(path.exists)
        yield str(path)
    finally:
        served.terminate()
        served.wait(DEADLINE_S)


@pytest.fixture(params=["this", OLD])
def link(request: Any, tmp_path_factory: pytest.TempPathFactory, packages: Path) -> Iterator[str]:
    python = request.getfixturevalue("old_python") if request.param == "old" else sys.executable
    with serving(tmp_path_factory.mktemp("b"), python, packages) as path:
        yield path


def run(out: Path, packages: Path | None, **settings: Any) -> Report:
    """Play both tasks; without packages the benchmark is elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        if packages is not None:
            patch.syspath_prepend(str(packages))
        return hocket.evaluate(
            **{"env": NAME, "episodes": 3, "lanes": 2, "policy": "random", **settings}, out=out
        )


def results(report: Report) -> list[Any]:
    return sorted(
        (e.trial.id, e.outcome.value, e.steps, e.total_reward, sorted(dict(e.told).items()))
        for e in report.episodes
    )


def test_the_program_is_one_short_file_of_an_old_python() -> None:
    text = Path(STAGE).read_text()
    assert text.count("\n") <= 250
    tree = ast.parse(text, feature_version=(3, 8))
    taken = {
        name.name for each in ast.walk(tree) if isinstance(each, ast.Import) for name in each.names
    }
    taken |= {each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    foreign = {name.split(".", maxsplit=1)[0] for name in taken} - sys.stdlib_module_names
    assert foreign == {"msgpack", "numpy", "vla_eval"}


def test_a_benchmark_behind_a_socket_is_an_env(link: str) -> None:
    suite = VlaEvalBenchmark("robocerebra", VlaEvalBenchmark.Config(link=link))
    check_suite(suite)
    env = suite.make("go left")
    seen = env.reset(seed=3)[0]
    assert seen["prompt"] == "go left!"
    assert set(seen) == {"front", "place", "looks", "prompt"}
    assert env.facts["benchmark"] == "Old"  # type: ignore[attr-defined]
    np.testing.assert_array_equal(env.hold_action(np.ones(2)), [0.5, 0.5])  # type: ignore[attr-defined]


def test_episodes_behind_a_socket_are_those_of_a_worker_to_the_bit(
    tmp_path: Path, link: str, packages: Path
) -> None:
    here = run(tmp_path / "here", packages)
    there = run(tmp_path / "there", None, env_config={"link": link})
    assert results(here) == results(there)
    assert {e.outcome.value for e in here.episodes} == {"success", "failure"}
    assert here.overall.n == 6


@pytest.mark.parametrize("fault", ["kill", "hang", "raise"])
def test_a_fault_of_a_benchmark_costs_one_attempt(
    fault: str, tmp_path: Path, link: str, packages: Path
) -> None:
    params = json.dumps({"fault": fault, "marks": str(tmp_path / "mark")})
    config = {"link": link, "params": params}
    report = run(tmp_path / "there", None, env_config=config, step_timeout_s=3.0)
    assert (tmp_path / "mark").exists()
    assert results(report) == results(run(tmp_path / "here", packages))
    assert sum(e.attempt for e in report.episodes) == 1


def test_a_benchmark_that_hangs_ends_with_whoever_asked(tmp_path: Path, packages: Path) -> None:
    with serving(tmp_path, sys.executable, packages) as path:
        params = json.dumps({"fault": "hang", "marks": str(tmp_path / "mark")})
        code = (
            "from hocket.adapters.envs.vla_eval import *\n"
            f"config = VlaEvalBenchmark.Config(link={path!r}, params={params!r})\n"
            "s = VlaEvalBenchmark('robocerebra', config)\n"
            "e = s.make('go left'); e.reset(seed=0)\n"
            "for _ in range(9): e.step([0, 0])\n"
        )
        asking = subprocess.Popen([sys.executable, "-c", code])
        wait_until((tmp_path / "mark").exists)
        with serving_processes(path) as pids:
            assert len(pids()) == 3  # the program, and two of the connection
            asking.kill()
            asking.wait()
            wait_until(lambda: len(pids()) == 1)


@contextmanager
def serving_processes(path: str) -> Iterator[Any]:
    def pids() -> list[str]:
        words = ["pgrep", "-f", f"{STAGE} {path}"]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()

    yield pids


@pytest.mark.parametrize("odd", ["nan", "text", "list", "none", "object", "missing"])
def test_an_odd_success_is_refused_alike_here_and_there(
    odd: str, tmp_path: Path, packages: Path
) -> None:
    said = []
    with serving(tmp_path, sys.executable, packages) as path:
        for place, settings in (("here", {}), ("there", {"link": path})):
            config = {"params": json.dumps({"odd": odd}), **settings}
            found = packages if place == "here" else None
            try:
                report = run(tmp_path / place, found, env_config=config, retries=0, episodes=1)
                said.append([type(e.error).__name__ for e in report.episodes] + results(report))
            except HocketError as exc:
                said.append([type(exc).__name__])
    assert said[0] == said[1]


def test_what_is_not_there_is_said(tmp_path: Path, packages: Path) -> None:
    with serving(tmp_path, sys.executable, packages) as path:
        for name, told in (
            ("robocerebro", "Did you mean 'robocerebra'"),
            ("no.module:X", "needs no"),
        ):
            suite = VlaEvalBenchmark(name, VlaEvalBenchmark.Config(link=path))
            with pytest.raises(HocketError, match=told):
                suite.tasks()
    suite = VlaEvalBenchmark("robocerebra", VlaEvalBenchmark.Config(link=str(tmp_path / "none")))
    with pytest.raises(EnvError, match="No such file"):
        suite.tasks()


CONDA = """#!/bin/sh
# Conda of an image, with one environment.
[ "$1 $2 $3 $4 $5" = "run --no-capture-output -n libero python" ] || exit 9
shift 5
exec {python} "$@"
"""


@pytest.fixture(scope="module")
def image(podman: Path, old_python: str, packages: Path) -> dict[str, Any]:
    """What hocket is told to run an image of the form of vla-eval's."""
    context = podman / "context"
    (context / "site").mkdir(parents=True)
    subprocess.run(["cp", "-r", f"{packages}/.", str(context / "site")], check=True)
    (context / "conda").write_text(CONDA.format(python=old_python))
    (context / "conda").chmod(0o755)
    lines = [f"FROM {IMAGE}", "COPY conda /opt/conda/bin/conda", "COPY site /opt/site"]
    lines += ["ENV PATH=/opt/conda/bin:/usr/bin:/bin PYTHONPATH=/opt/site", "WORKDIR /workspace"]
    lines += ['ENTRYPOINT ["conda", "run", "--no-capture-output", "-n", "libero", "vla-eval"]']
    (context / "Dockerfile").write_text("\n".join([*lines, 'CMD ["run"]', ""]))
    base = subprocess.run(
        [old_python, "-c", "import sys; print(sys.base_prefix)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    places = [f"{path}:{path}:ro" for path in (base, str(Path(old_python).parents[1]))]
    config = {"dockerfile": str(context), "mounts": mounts(*places)}
    return {"runtime": "podman", "runtime_config": config}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_episodes_in_an_image_are_those_of_a_worker_with_all_their_files(
    tmp_path: Path, image: dict[str, Any], packages: Path
) -> None:
    more = {"record": "full", "video": "all", "episodes": 2}
    here, there = (
        run(tmp_path / "here", packages, **more),
        run(tmp_path / "there", None, **more, **image),
    )
    assert results(here) == results(there)
    names = [
        sorted(str(p.relative_to(tmp_path / each)) for p in (tmp_path / each).rglob("*.mp4"))
        for each in ("here", "there")
    ]
    assert names[0] == names[1] != []
    wait_until(lambda: not any(f"-{os.getpid()}-" in name for name in containers()))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", ["kill", "hang", "container"])
def test_a_fault_in_an_image_costs_one_attempt(
    fault: str, tmp_path: Path, image: dict[str, Any], packages: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    marks.chmod(0o777)
    config = {**image["runtime_config"]}
    config["mounts"] = (*config["mounts"], f"{marks}:/marks")
    kind = "hang" if fault == "container" else fault
    params = json.dumps({"fault": kind, "marks": "/marks/one"})
    settings = {
        "runtime": image["runtime"],
        "runtime_config": config,
        "env_config": {"params": params},
    }
    patience = DEADLINE_S if fault == "container" else 3.0

    def kill() -> None:
        wait_until((marks / "one").exists)
        for name in containers():
            if f"-{os.getpid()}-" in name:
                subprocess.run(["podman", "kill", name], check=False, capture_output=True)

    if fault == "container":
        threading.Thread(target=kill).start()
    report = run(tmp_path / "there", None, step_timeout_s=patience, retries=4, **settings)
    assert results(report) == results(run(tmp_path / "here", packages))
    wait_until(lambda: not any(f"-{os.getpid()}-" in name for name in containers()))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_image_that_lacks_the_environment_says_so(tmp_path: Path, image: dict[str, Any]) -> None:
    with pytest.raises(HocketError, match="code 9"):
        run(tmp_path / "run", None, env="vla-eval:libero_mem", **image)
    with pytest.raises(HocketError, match="No image has all of"):
        run(tmp_path / "two", None, env=[NAME, "toy:count"], **image)


def test_what_a_planner_found_is_kept_until_something_changes_that_it_depends_on(
    tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "support"))
    monkeypatch.setitem(sys.modules, "vla_eval.api", SimpleNamespace(run=None))
    count = tmp_path / "count"

    def planned(**params: str) -> int:
        config = VlaEvalBenchmark.Config(params=json.dumps({"count": str(count), **params}))
        suite = VlaEvalBenchmark("planned_bench:RoboTwinBenchmark", config)
        assert [task.name for task in suite.tasks()] == ["grab", "grab (2)"]
        config = replace(config, action_size=2)
        env = VlaEvalBenchmark("planned_bench:RoboTwinBenchmark", config).make("grab (2)")
        env.reset(seed=0)
        return count.read_text().count("planned")

    assert planned() == planned() == 1
    assert planned(code="b") == 2
    (kept, _) = sorted((tmp_path / "hocket" / "tasks").glob("*.json"))
    for damage in (kept.read_text().replace("100003", "100004"), "{", "[]", '{"digest": 1}'):
        kept.write_text(damage)
        before = count.read_text().count("planned")
        planned()
        assert planned(code="b") == before + 1
