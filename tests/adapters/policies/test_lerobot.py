from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hocket
from hocket.adapters.policies.lerobot import LeRobotConfig
from hocket.adapters.policies.lerobot.folder import (
    REFUSED,
    check_folder,
    default_key,
    find_folder,
)
from hocket.core import plugins
from hocket.errors import ConfigError, PolicyError, SpecMismatchError, UsageError
from support.commands import run_process
from support.hub_stand_in import COMMIT, serve_model
from support.parts import ROOT, needs_venv, python_of

PYTHON, PYTHON_04 = python_of("lerobot"), python_of("lerobot-0.4")


def needs(python: Path) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow, pytest.mark.timeout(600), needs_venv(python.parts[-3])]


CHECKS = [
    "specs_tell_what_a_policy_reads",
    "act_acts_as_in_lerobots_own_loop",
    "act_ensembles_as_in_lerobots_own_loop",
    "diffusion_acts_as_in_lerobots_own_loop",
    "vqbet_acts_as_in_lerobots_own_loop",
    "smolvla_acts_as_in_lerobots_own_loop",
    "tdmpc_plans_as_in_lerobots_own_loop",
    "sac_acts_as_in_lerobots_own_loop",
    "xvla_acts_as_in_lerobots_own_loop",
    "plans_are_each_attempts_own",
    "a_row_does_not_depend_on_its_batch",
    "weights_that_do_not_fit_are_refused",
    "lora_fine_tunes_act_as_in_lerobots_own_loop",
    "fields_of_another_version_are_dropped_where_they_are_null",
    "policies_of_third_parties_are_asked",
    "guided_chunks_are_lerobots_own",
    "relative_actions_are_told_from_the_new_state",
    "guidance_by_identity_is_lerobots",
    "rows_of_one_observation_are_encoded_once",
]
CHECKS_04 = [*CHECKS, "pi0_of_lerobot_0_4_is_refused_with_what_to_do"]
CHECKS_06 = [
    *CHECKS,
    "multi_task_dit_acts_as_in_lerobots_own_loop",
    "pi0_acts_as_in_lerobots_own_loop",
    "pi0_s_rows_of_one_observation_are_encoded_once",
    "pi05_acts_as_in_lerobots_own_loop",
    "pi0_fast_acts_as_in_lerobots_own_loop",
    "eo1_acts_as_in_lerobots_own_loop",
    "evo1_acts_as_in_lerobots_own_loop",
    "fastwam_acts_as_in_lerobots_own_loop",
    "vla_jepa_acts_as_in_lerobots_own_loop",
]


def make_folder(root: Path, *, kind: object = "act", leave_out: str = "") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": json.dumps({"type": kind}),
        "model.safetensors": "",
        "policy_preprocessor.json": "{}",
        "policy_postprocessor.json": "{}",
    }
    for name, text in files.items():
        if name != leave_out:
            (root / name).write_text(text)
    return root


def in_lerobots_interpreter(script: str, *arguments: str, python: Path = PYTHON) -> str:
    done = subprocess.run(
        [str(python), script, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]),
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


# -- folders -------------------------------------------------------------------------------------


def test_importing_the_adapter_loads_neither_torch_nor_lerobot():
    code = (
        "import sys; from hocket.core import plugins; plugins.find('policies', 'lerobot:x');"
        "sys.exit(any(m in sys.modules for m in ('torch', 'lerobot')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=100, check=False).returncode == 0


def test_a_training_run_means_the_model_inside(tmp_path):
    inner = make_folder(tmp_path / "pretrained_model")
    assert find_folder(str(tmp_path)) == inner
    assert find_folder(str(inner)) == inner
    assert check_folder(inner)["type"] == "act"


@pytest.mark.parametrize("argument", ["", "no/such/folder/here", "/nowhere", "nobody/nothing"])
def test_a_folder_that_is_not_there_is_named(argument):
    with pytest.raises(UsageError, match=argument or "Say which policy"):
        find_folder(argument)


def test_pickled_weights_are_refused(tmp_path):
    folder = make_folder(tmp_path, leave_out="model.safetensors")
    with pytest.raises(ConfigError, match=r"no model\.safetensors"):
        check_folder(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin, a pickle.*save_pretrained"):
        check_folder(folder)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("config.json", "no config.json"),
        ("policy_preprocessor.json", "older than 0.4"),
        ("policy_postprocessor.json", "older than 0.4"),
    ],
)
def test_a_folder_that_lacks_something_is_refused(tmp_path, missing, said):
    with pytest.raises(ConfigError, match=said):
        check_folder(make_folder(tmp_path, leave_out=missing))


def test_a_configuration_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not say its policy's type"):
        check_folder(make_folder(tmp_path / "a", kind=None))
    (make_folder(tmp_path / "b") / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is no JSON"):
        check_folder(tmp_path / "b")


@pytest.mark.parametrize("kind", REFUSED)
def test_policies_that_cannot_be_batched_are_refused_with_the_reason(tmp_path, kind):
    with pytest.raises(ConfigError, match=REFUSED[kind]):
        check_folder(make_folder(tmp_path, kind=kind))


def test_keys_follow_from_lerobots():
    assert default_key("observation.images.wrist_image") == "observation/wrist_image"
    assert default_key("observation.state") == "observation/state"
    assert default_key("observation.image") == "observation/image"


@pytest.mark.parametrize("wrong", [{"max_batch": 0}, {"threads": 0}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError):
        LeRobotConfig(**wrong)


# -- in LeRobot's interpreter --------------------------------------------------------------------


def what_is_said(python: Path, checks: list[str]) -> str:
    """By all checks, from one process: importing LeRobot takes longer than they do."""
    script = str(ROOT / "tests" / "support" / "lerobot_checks.py")
    return in_lerobots_interpreter(script, *checks, python=python)


@pytest.fixture(scope="module")
def said() -> str:
    return what_is_said(PYTHON, CHECKS_06)


@pytest.fixture(scope="module")
def said_by_04() -> str:
    return what_is_said(PYTHON_04, CHECKS_04)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """ACT for MetaWorld's state, and one camera of 64 pixels."""
    path: Path = tmp_path_factory.mktemp("policies") / "act"
    in_lerobots_interpreter(
        "-c",
        "import sys; from hocket.adapters.policies.lerobot.folder import mend_torchvision;"
        "mend_torchvision(); from support import lerobot_models as models;"
        "models.save('act', sys.argv[1], states=39, moves=4, cameras=models.CAMERAS[:1])",
        str(path),
    )
    return path


@pytest.fixture(scope="module")
def flow_folder(tmp_path_factory) -> Path:
    """SmolVLA for the same."""
    path: Path = tmp_path_factory.mktemp("policies") / "smolvla"
    in_lerobots_interpreter(
        "-c",
        "import sys; from pathlib import Path;"
        "from hocket.adapters.policies.lerobot.folder import mend_torchvision;"
        "mend_torchvision(); from support import lerobot_models as models;"
        "vlm = str(models.save_backbone(Path(sys.argv[1]).parent / 'vlm'));"
        "models.save('smolvla', sys.argv[1], states=39, moves=4, cameras=models.CAMERAS[:1],"
        " max_state_dim=40, vlm_model_name=vlm)",
        str(path),
    )
    return path


class TestInLeRobotsInterpreter:
    pytestmark = needs(PYTHON)

    @pytest.mark.parametrize("check", CHECKS_06)
    def test_in_lerobots_interpreter(self, check, said):
        assert f"passed {check}\n" in said, said

    def test_every_class_has_its_row_in_the_docs(self, said):
        known = json.loads(said.rpartition("facts ")[2])["known"]
        table = (ROOT / "docs" / "lerobot.md").read_text()
        assert [kind for kind in known if f"| `{kind}` |" not in table] == []

    def evaluate(self, folder, **settings):
        return hocket.evaluate(
            env="metaworld:reach",
            env_config={"size": 64, "render": "fast", **settings.pop("env_config", {})},
            policy=f"lerobot:{folder}",
            policy_config={"threads": 1},
            policy_python=str(PYTHON),
            episodes=2,
            lanes=2,
            max_steps=12,
            **settings,
        )

    def test_a_policy_of_another_interpreter_drives_envs_of_this_one(self, folder):
        pytest.importorskip("metaworld")
        report = self.evaluate(folder)
        assert report.complete
        assert not report.overall.errors
        # Four of six actions are executed, as the policy's own configuration says.
        assert report.throughput.chunks == 2 * 3

    def test_a_checkpoint_of_the_hub_is_evaluated_by_its_id(self, folder, tmp_path, monkeypatch):
        pytest.importorskip("metaworld")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        with serve_model("user/reacher", files) as (endpoint, asked):
            monkeypatch.setenv("HF_ENDPOINT", endpoint)
            done = run_process(
                tmp_path,
                *("eval", "--env", "metaworld:reach", "--env.size", "64", "--max-steps", "6"),
                *("--policy", "lerobot:user/reacher@main", "--policy-python", str(PYTHON)),
                *("--episodes", "2", "--lanes", "2", "--out", "run", "--json"),
            )
        assert done.returncode == 0, done.stderr
        assert any(path.endswith("model.safetensors") for path in asked)
        overall = json.loads(done.stdout)["overall"]
        assert (overall["n"], overall["errors"]) == (2, 0)
        about = (tmp_path / "run" / "run.yaml").read_text()
        weights = hashlib.sha256(files["model.safetensors"]).hexdigest()
        for each in ("lerobot:user/reacher@main", COMMIT, weights):
            assert each in about

    def test_a_flow_policy_of_another_interpreter_is_guided_by_lerobot(self, flow_folder):
        pytest.importorskip("metaworld")
        common = {"replan": 3, "delay": 2}
        naive = self.evaluate(flow_folder, method="naive", **common)
        guided = self.evaluate(flow_folder, method="rtc", **common)
        assert guided.complete
        assert not guided.overall.errors
        returns = [[e.total_reward for e in report.episodes] for report in (naive, guided)]
        assert returns[0] != returns[1]
        with pytest.raises(PolicyError, match="identity"):
            self.evaluate(flow_folder, method="rtc", rtc_config={"guidance": "vjp"}, **common)

    def test_a_camera_of_another_size_is_named_before_anything_runs(self, folder):
        pytest.importorskip("metaworld")
        with pytest.raises(SpecMismatchError, match=r"observation/image.*\(64, 64, 3\)"):
            self.evaluate(folder, env_config={"size": 32})

    def test_inputs_can_be_renamed_and_unknown_ones_are_refused(self, folder):
        code = (
            "import sys; from hocket.core import plugins;"
            "keys = {sys.argv[2]: 'observation/top'};"
            "made = plugins.build('policies', 'lerobot:' + sys.argv[1], {'keys': keys});"
            "print(sorted(made.spec.inputs))"
        )
        said = in_lerobots_interpreter("-c", code, str(folder), "observation.images.image")
        assert "['observation/state', 'observation/top']" in said
        with pytest.raises(AssertionError, match=r"has no input 'observation\.images\.nothing'"):
            in_lerobots_interpreter("-c", code, str(folder), "observation.images.nothing")


class TestInTheInterpreterOfLeRobot04:
    pytestmark = needs(PYTHON_04)

    @pytest.mark.parametrize("check", CHECKS_04)
    def test_in_the_interpreter_of_lerobot_04(self, check, said_by_04):
        assert f"passed {check}\n" in said_by_04, said_by_04


def test_where_lerobot_is_missing_the_error_says_what_to_do(tmp_path):
    if plugins.importlib.util.find_spec("lerobot") is not None:
        pytest.skip("LeRobot is installed here")
    with pytest.raises(
        hocket.errors.MissingExtraError, match="--policy-python venvs/lerobot/bin/python"
    ):
        plugins.build("policies", f"lerobot:{make_folder(tmp_path)}", {})
