"""What `--help` shows: a beginner's flags, those of what is named, and all of them."""

from __future__ import annotations

import re

import pytest

from hocket.cli import main
from hocket.cli.flags.parse import knobs_of
from hocket.runs.config import EvalConfig


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    return capsys.readouterr().out


def flags_in(text: str) -> list[str]:
    return re.findall(r"^[^\w-]*(--[a-z][\w.-]*)", text, flags=re.MULTILINE)


def test_the_first_help_of_eval_is_ten_flags_in_forty_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(capsys, "eval", "--help")
    assert text.count("\n") <= 40
    assert flags_in(text) == [
        *("--env", "--policy", "--episodes", "--seed", "--lanes", "--replan"),
        *("--out", "--video", "--watch", "--dry-run"),
    ]
    assert "--help-all shows all" in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["--env", "toy:count"], "--env.length-max"),
        (["--policy", "openpi://h:1"], "--policy.mapping"),
        (["--runtime", "docker:x"], "--runtime.memory"),
        (["--machines", "local:2"], "--site.lease"),
    ],
)
def test_what_is_named_adds_its_flags(
    capsys: pytest.CaptureFixture[str], words: list[str], flag: str
) -> None:
    assert flag not in flags_in(shown(capsys, "eval", "--help"))
    assert flag in flags_in(shown(capsys, "eval", *words, "--help"))


@pytest.mark.parametrize(
    ("algorithm", "flag"), [("ppo", "--gamma"), ("grpo", "--group"), ("bc", "--data")]
)
def test_flags_of_an_algorithm_are_shown_once_it_is_named(
    capsys: pytest.CaptureFixture[str], algorithm: str, flag: str
) -> None:
    assert flag not in flags_in(shown(capsys, "train", "--help"))
    assert flag in flags_in(shown(capsys, "train", "--algo", algorithm, "--help"))


def test_every_flag_is_shown_by_help_all(capsys: pytest.CaptureFixture[str]) -> None:
    found = flags_in(shown(capsys, "eval", "--help-all"))
    spelled = {name.removesuffix("_s").replace("_", "-") for name in knobs_of(EvalConfig)}
    assert {f"--{name}" for name in spelled} <= set(found)
    assert {"--perturb", "--site.cpus", "--reader", "--jobs", "--config"} <= set(found)


def test_the_policies_of_training_are_those_that_it_can_train(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = " ".join(shown(capsys, "train", "--help").split())
    assert "actor or flow" in text
    assert "metaworld-expert" not in text


def test_help_of_cloning_leaves_out_what_cloning_refuses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "--bc-weight" not in flags_in(shown(capsys, "train", "--algo", "bc", "--help"))
