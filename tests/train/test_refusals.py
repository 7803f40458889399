"""What `hocket train` cannot do is said in a sentence, before a folder is made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hocket.cli import main
from hocket.train.learner import checkpoint
from support.stock_openpi import StockServer

FLAGS = ["--reward", "env", "--steps", "50", "--batch", "4", "--lanes", "1"]


def refused(capsys: pytest.CaptureFixture[str], out: Path, *flags: str) -> str:
    """What is said; no folder is left."""
    assert main(["train", *flags, *FLAGS, "--out", str(out)]) == 2
    assert not out.exists()
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return told


@pytest.mark.parametrize("policy", ["random", "openpi://127.0.0.1:1", "zero"])
def test_a_policy_without_probabilities_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    told = refused(capsys, tmp_path / "run", "--env", "toy:count", "--policy", policy)
    assert "--residual" in told


def test_a_policy_of_lerobot_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(capsys, tmp_path / "run", "--env", "toy:count", "--policy", "lerobot:nowhere")
    assert "nowhere" in told


def test_an_interpreter_that_is_not_there_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--env", "toy:count", "--policy", "actor", "--env-python", "/nowhere/python"]
    assert "--env-python" in refused(capsys, tmp_path / "run", *flags)


def test_a_missing_tracker_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--env", "toy:count", "--policy", "actor", "--reader", "trackio"]
    assert "pip install 'hocket[trackio]'" in refused(capsys, tmp_path / "run", *flags)


def test_weights_that_are_a_pickle_are_refused_with_the_way_to_convert_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "mine.pt")
    flags = ["--env", "toy:count", "--policy", "train.test_checkpoint:OwnActor"]
    told = refused(capsys, tmp_path / "run", *flags, "--weights", str(tmp_path / "mine.pt"))
    assert "mine.safetensors" in told
    assert "pickle" in told


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("support.chunk_modules:Silent", "Silent cannot be trained as it stands: .*torch:support"),
        ("torch:support.chunk_modules:Silent", r"Silent has no method forward\(observation\)"),
    ],
)
def test_a_module_that_training_cannot_use_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str, said: str
) -> None:
    told = refused(capsys, tmp_path / "run", "--env", "toy:count", "--policy", policy)
    assert re.search(said, told)


@pytest.mark.slow
def test_a_correction_of_a_stock_server_learns_how_long_its_chunks_are(tmp_path: Path) -> None:
    def answer(observation: dict[str, Any]) -> dict[str, Any]:
        return {"actions": np.zeros((5, 4), np.float32)}

    with StockServer(answer) as server:
        name = f"openpi://127.0.0.1:{server.port}"
        flags = ["--env", "toy:count", "--policy", name, "--residual"]
        out = tmp_path / "run"
        assert main(["train", *flags, *FLAGS, "--eval-episodes", "2", "--out", str(out)]) == 0
        saved = checkpoint.read_table(out / "best" / checkpoint.POLICY)
        assert saved["config"]["chunk_length"] == 5
        wanted = ["--policy", str(out / "best"), "--policy.base", name, "--episodes", "1"]
        where = ["--lanes", "1", "--out", str(tmp_path / "eval")]
        assert main(["eval", "--env", "toy:count", *wanted, *where]) == 0
