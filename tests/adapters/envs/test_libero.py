from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.adapters.envs.libero import STEP_LIMITS, SUITES, Libero, language
from hocket.adapters.envs.libero.data import find_data, read_pruned_init
from hocket.adapters.envs.libero.sampling import SamplingClock
from hocket.errors import ConfigError, MissingExtraError, UnknownNameError
from hocket.records.step_rows import KeptStates
from support.libero_venv import DATA, NEEDS_LIBERO, PYTHON, ROOT

CHECKS = [
    "conforms",
    "importing_asks_nothing_and_loads_no_opengl",
    "a_soft_reset_equals_a_hard_one",
    "ticks_give_the_bits_of_robosuites_own",
    "seeds_count_round_the_start_states",
    "states_can_be_given_to_another_env",
    "observing_changes_nothing",
    "success_is_the_envs_own",
    "liberos_own_env_gives_the_same",
]


def tasks_of(argument: str, **config):
    return Libero(argument, Libero.Config(**config)).tasks()


def make_data(root: Path, *parts: str) -> Path:
    for part in parts:
        (root / part).mkdir(parents=True)
    return root


def as_torch_writes(path: Path, value: object) -> Path:
    """A file of torch's format: an archive with one pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr("archive/version", "3\n")
    return path


# -- names ---------------------------------------------------------------------------------------


def test_importing_the_suite_loads_no_simulator():
    code = (
        "import sys; from hocket.adapters.envs.libero import Libero;"
        "Libero('10', Libero.Config()).tasks();"
        "sys.exit(any(m in sys.modules for m in ('mujoco', 'libero', 'robosuite', 'OpenGL')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=100, check=False).returncode == 0


def test_names_mean_a_suite_or_one_task():
    assert [task.name for task in tasks_of("spatial")] == list(SUITES["libero_spatial"])
    assert tasks_of("libero_10") == tasks_of("10")
    assert [len(tasks_of(name)) for name in ("spatial", "object", "goal", "10", "90")] == [
        *[10] * 4,
        90,
    ]
    assert [task.name for task in tasks_of("turn on the stove")] == ["turn_on_the_stove"]


def test_prompts_leave_out_the_scene_of_a_task():
    assert language("KITCHEN_SCENE10_close_the_top_drawer") == "close the top drawer"
    assert language("turn_on_the_stove") == "turn on the stove"
    assert all(task.prompt and "SCENE" not in task.prompt for task in tasks_of("90"))


def test_step_limits_are_each_suites_own_unless_told():
    assert {name: tasks_of(name)[0].max_steps for name in SUITES} == STEP_LIMITS
    assert tasks_of("goal", max_steps=7)[0].max_steps == 7


def test_a_name_that_is_nearly_right_is_suggested():
    with pytest.raises(UnknownNameError, match="Did you mean 'spatial'"):
        tasks_of("spacial")
    with pytest.raises(UnknownNameError, match="turn_on_the_stove"):
        tasks_of("turn_on_the_stov")
    with pytest.raises(UnknownNameError, match="libero:spatial"):
        tasks_of("")


@pytest.mark.parametrize(
    "wrong",
    [{"size": 0}, {"settle_steps": -1}, {"max_steps": 0}, {"scene_seed": -1}, {"render": "quick"}],
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError):
        Libero.Config(**wrong)


# -- data ----------------------------------------------------------------------------------------


def test_missing_data_is_named_with_what_to_set(monkeypatch, tmp_path):
    monkeypatch.delenv("HOCKET_LIBERO_DATA", raising=False)
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"HOCKET_LIBERO_DATA is not set.*config\.yaml"):
        find_data()
    monkeypatch.setenv("HOCKET_LIBERO_DATA", str(make_data(tmp_path, "bddl_files", "init_files")))
    with pytest.raises(ConfigError, match="assets are missing"):
        find_data()


def test_data_is_found_by_the_variable_and_else_by_liberos_configuration(monkeypatch, tmp_path):
    ours = make_data(tmp_path / "ours", "assets", "bddl_files", "init_files")
    theirs = make_data(tmp_path / "theirs", "assets", "bddl_files", "init_files")
    (theirs / "config.yaml").write_text(
        f"assets: {theirs}/assets\nbddl_files: {theirs}/bddl_files\n"
        f"init_states: {theirs}/init_files\n"
    )
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(theirs))
    monkeypatch.setenv("HOCKET_LIBERO_DATA", str(ours))
    assert find_data().assets == ours / "assets"
    monkeypatch.delenv("HOCKET_LIBERO_DATA")
    assert find_data().init_states == theirs / "init_files"
    (theirs / "config.yaml").write_text("assets: [")
    with pytest.raises(ConfigError, match="cannot be used"):
        find_data()


def test_a_suite_without_data_is_named_with_those_that_have_some(monkeypatch, tmp_path):
    root = make_data(tmp_path, "assets", "bddl_files/libero_goal", "init_files")
    monkeypatch.setenv("HOCKET_LIBERO_DATA", str(root))
    with pytest.raises(ConfigError, match=r"no libero_90/x\.bddl.*libero_goal"):
        find_data().bddl_file("libero_90", "x")
    with pytest.raises(ConfigError, match="no readable start states"):
        find_data().states("libero_90", "x")


def test_missing_data_is_told_before_any_worker_starts(monkeypatch, tmp_path):
    root = make_data(tmp_path, "assets", "bddl_files/libero_goal", "init_files")
    monkeypatch.setenv("HOCKET_LIBERO_DATA", str(root))
    (root / "bddl_files/libero_goal/turn_on_the_stove.bddl").touch()
    Libero.require_data("turn_on_the_stove")
    with pytest.raises(ConfigError, match=r"has no libero_goal/open_the_.*\.bddl"):
        Libero.require_data("goal")
    with pytest.raises(ConfigError, match=r"has no libero_90/.*It has files for: libero_goal"):
        Libero.require_data("90")


@pytest.mark.skipif(find_spec("libero") is not None, reason="LIBERO is installed here")
@pytest.mark.parametrize("python", [None, sys.executable])
def test_where_libero_is_missing_the_error_says_what_to_do(tmp_path, python):
    with pytest.raises(MissingExtraError, match="--env-python venvs/libero/bin/python"):
        hocket.evaluate(
            env="libero:spatial", policy="random", episodes=1, env_python=python, out=tmp_path / "x"
        )
    assert not (tmp_path / "x").exists()


def test_liberos_start_states_are_read_without_torch(tmp_path):
    states = np.random.default_rng(0).normal(size=(50, 9))
    read = read_pruned_init(as_torch_writes(tmp_path / "a.pruned_init", states))
    np.testing.assert_array_equal(read, states)


def test_what_torch_itself_writes_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    states = np.random.default_rng(0).normal(size=(4, 3))
    torch.save(states, tmp_path / "a.pruned_init")
    np.testing.assert_array_equal(read_pruned_init(tmp_path / "a.pruned_init"), states)


def test_start_states_that_could_run_code_are_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, ("touch " + str(tmp_path / "ran"),)

    file = as_torch_writes(tmp_path / "a.pruned_init", Evil())
    with pytest.raises(ValueError, match="could run code"):
        read_pruned_init(file)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"PK nonsense", b"\x80\x02."])
def test_start_states_that_are_no_archive_are_refused(tmp_path, content):
    (tmp_path / "a.pruned_init").write_bytes(content)
    with pytest.raises(ValueError, match="archive"):
        read_pruned_init(tmp_path / "a.pruned_init")


def test_an_archive_without_numbers_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no table of numbers"):
        read_pruned_init(as_torch_writes(tmp_path / "a.pruned_init", [1, 2]))
    with zipfile.ZipFile(tmp_path / "b.pruned_init", "w") as archive:
        archive.writestr("data.pkl", io.BytesIO(b"\x80\x02").getvalue())
    with pytest.raises(ValueError, match="cannot be read"):
        read_pruned_init(tmp_path / "b.pruned_init")


# -- when sensors look ---------------------------------------------------------------------------


def test_sensors_are_read_once_in_every_control_step():
    clock = SamplingClock(tick=0.002, period=0.05)
    clock.restart()
    for _ in range(500):
        assert sum(clock.tick() for _ in range(25)) == 1


def test_the_clock_goes_on_where_its_state_was_taken():
    clock, other = (SamplingClock(tick=0.002, period=0.05) for _ in range(2))
    clock.restart()
    for _ in range(37):
        clock.tick()
    other.state = clock.state
    assert [clock.tick() for _ in range(60)] == [other.tick() for _ in range(60)]


# -- in LIBERO's interpreter ---------------------------------------------------------------------


class TestInLiberosInterpreter:
    pytestmark = NEEDS_LIBERO

    @pytest.mark.parametrize("check", CHECKS)
    def test_in_liberos_interpreter(self, check):
        script = ROOT / "tests" / "support" / "libero_checks.py"
        done = subprocess.run(
            [str(PYTHON), str(script), check],
            env={**os.environ, "HOCKET_LIBERO_DATA": str(DATA), "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.endswith("done\n")

    def test_a_trial_is_the_same_in_any_worker_and_order(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOCKET_LIBERO_DATA", str(DATA))
        monkeypatch.chdir(ROOT)
        tasks = ["libero:turn_on_the_stove", "libero:put_the_bowl_on_the_plate"]
        for name, order, lanes in (("a", tasks, 2), ("b", tasks[::-1], 1)):
            report = hocket.evaluate(
                env=order,
                policy="random",
                policy_config={"chunk_length": 8},
                episodes=2,
                lanes=lanes,
                max_steps=16,
                env_python=str(PYTHON),
                out=tmp_path / name,
            )
            assert report.complete
            assert not report.overall.errors
        assert len(report.episodes) == 4
        for episode in report.episodes:
            states, twin = (KeptStates(tmp_path / name).load(episode) for name in "ab")
            assert states is not None
            assert len(states) == 17
            np.testing.assert_array_equal(states, twin)
