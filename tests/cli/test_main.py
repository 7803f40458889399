import subprocess
import sys

import pytest

from hocket import cli
from hocket.errors import RunFolderError, SpecMismatchError, UsageError


def hocket(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hocket", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_help_lists_every_verb_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, verb in cli.VERBS.items():
        assert f"  {name}" in text
        assert verb.summary in text
    assert max(map(len, text.splitlines())) <= 80


def test_no_verb_shows_help_but_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage:" in capsys.readouterr().out


def test_an_unknown_verb_gets_one_line_with_the_nearest() -> None:
    done = hocket("evl")
    assert done.returncode == 2
    assert "Did you mean 'eval'?" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_version_is_printed() -> None:
    done = hocket("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "hocket")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--env", "metaword:mt10", "--policy", "zero"], "Did you mean 'metaworld'?"),
        (["--env", "metaworld:mt10", "--policy", "zerro"], "Did you mean 'zero'?"),
        (["--env", "metaworld:raech-v3", "--policy", "zero", "--dry-run"], "reach"),
        (["--env", "gym:CartPole-v1", "--policy", "zero", "--episodes", "0"], "at least 1"),
        (["--env", "gym:CartPole-v1", "--policy", "zero", "--lanes", "-3"], "at least 1"),
        (["--env", "gym:CartPole-v1", "--policy", "zero", "--env.kwrgs", "{}"], "--env.kwargs"),
        (["--env", "gym:CartPole-v1", "--policy", "zero", "--config", "no.yaml"], "no.yaml"),
        (["--policy", "zero"], "--env"),
        (["--env", "gym:CartPole-v1", "--policy", "zero", "--worker-memory", "lots"], "512M"),
    ],
)
def test_wrong_usage_of_eval_is_told_without_a_traceback(arguments: list[str], says: str) -> None:
    done = hocket("eval", *arguments)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (RunFolderError("x"), 2),
        (SpecMismatchError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_kind_of_error_has_its_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr("hocket.cli.plan.run", raises)
    assert cli.main(["plan"]) == code


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(arguments: list[str]) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("hocket.cli.plan.run", raises)
    with pytest.raises(ZeroDivisionError):
        cli.main(["plan"])


def test_a_reader_that_goes_away_is_no_error_message() -> None:
    command = f"{sys.executable} -m hocket plan --execute-s 1 --latency 1 --lanes 1:99999 | head -1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=100, check=False
    )
    assert "lanes" in done.stdout
    assert done.stderr == ""
