from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hocket.cli import main
from hocket.train.config import TrainConfig

ROOT = Path(__file__).parents[2]


def test_help_lists_the_flags_and_the_settings_of_the_named_policy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--env", "toy:count", "--policy", "actor", "--help-all"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for flag in ("--max-staleness", "--correction", "--pin-version", "--policy.chunk-length"):
        assert flag in text


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; from hocket.cli import main\n"
        "try: main(['train', '--env', 'toy:count', '--policy', 'flow', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100, stdout=subprocess.DEVNULL)


def test_a_run_from_a_file_with_flags_over_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    file = tmp_path / "train.yaml"
    file.write_text(
        "env: toy:count\npolicy: actor\nsteps: 100\nbatch: 4\nlanes: 1\neval_every: 0\n"
        "algo: grpo\ngroup: 4\nreward: env\n"
    )
    flags = ["--config", str(file), "--batch", "8", "--group", "2", "--out", str(out)]
    assert main(["train", *flags]) == 0
    assert (out / "run.yaml").is_file()
    assert list((out / "tensorboard").iterdir())
    assert main(["train", "--resume", str(out), "--steps", "5"]) == 2


def test_the_example_is_a_valid_configuration() -> None:
    from hocket.records.run_file import load_run

    config = TrainConfig.from_plain(load_run(ROOT / "examples" / "grpo.yaml"))
    assert config.algo == "grpo"


def test_what_cannot_be_resumed_is_wrong_usage(tmp_path: Path) -> None:
    assert main(["train", "--resume", str(tmp_path)]) == 2


def test_a_tracker_that_is_not_installed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--env", "toy:count", "--policy", "actor", "--steps", "50", "--lanes", "1"]
    assert main(["train", *flags, "--reader", "trackio", "--out", str(tmp_path / "run")]) == 2
    assert "pip install 'hocket[trackio]'" in capsys.readouterr().err


def test_an_untrained_policy_cannot_be_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--env", "toy:count", "--policy", "actor", "--lanes", "1"]) == 2
    assert "hocket train" in capsys.readouterr().err


def test_a_policy_of_another_interpreter_can_only_be_corrected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--env", "toy:count", "--policy", "actor", "--policy-python", "elsewhere"]
    assert main(["train", *flags]) == 2
    assert "--residual" in capsys.readouterr().err


@pytest.mark.slow
def test_a_correction_of_a_policy_in_another_interpreter_is_trained_and_used(
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    flags = ["--env", "toy:count", "--policy", "zero", "--policy.chunk-length", "4"]
    flags += ["--policy-python", sys.executable, "--residual", "--reward", "env"]
    flags += ["--steps", "50", "--batch", "4", "--lanes", "1", "--eval-episodes", "2"]
    assert main(["train", *flags, "--out", str(out)]) == 0
    wanted = ["--policy", str(out / "best"), "--policy.base", "zero"]
    wanted += ["--policy.base-python", sys.executable, "--episodes", "2", "--lanes", "1"]
    assert main(["eval", "--env", "toy:count", *wanted, "--out", str(tmp_path / "eval")]) == 0


def test_lanes_are_counted_where_nobody_says_how_many(tmp_path: Path) -> None:
    flags = ["--env", "toy:count", "--policy", "actor", "--reward", "env", "--steps", "50"]
    out = tmp_path / "run"
    assert main(["train", *flags, "--batch", "4", "--eval-every", "0", "--out", str(out)]) == 0
    assert "lanes: auto" in (out / "run.yaml").read_text()
