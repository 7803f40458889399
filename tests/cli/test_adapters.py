import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest

from hocket.cli import adapters
from hocket.cli.eval import Eval
from hocket.cli.subject import parse
from hocket.errors import ConfigError, UnknownNameError, UsageError
from hocket.runs.evaluation import EvalConfig


class Small:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config:
        size: int = 224
        """Pixels of
        a side."""
        render: Literal["full", "fast"] = "full"
        """How to draw."""

    def __init__(self, argument: str, config: Config) -> None: ...


def large(size: int = 9, weights: Any = None, name: str = "x") -> None: ...


def picky(path: str) -> None: ...


def rig(cameras: tuple[str, ...] = ("front",)) -> None: ...


SMALL, LARGE, PICKY, RIG = (f"{__name__}:{name}" for name in ("Small", "large", "picky", "rig"))


def test_a_name_is_found_before_there_is_a_parser_and_the_last_counts() -> None:
    assert adapters.scan(["--env", "a", "--env=b"], "--env") == "b"
    assert adapters.scan(["--env.size", "3"], "--env") is None


def test_settings_of_the_named_adapters_are_flags() -> None:
    parsed = parse(
        Eval,
        ["--env", SMALL, "--policy", PICKY, "--env.size", "8", "--policy.path", "p"],
        verb="eval",
    )
    assert parsed.config["env_config"] == {"size": 8}
    assert parsed.config["policy_config"] == {"path": "p"}
    assert parsed.config["env"] == [SMALL]


@pytest.mark.parametrize("spelled", [["left,right"], ["left", "right"]])
def test_several_words_are_given_with_commas_as_names_are_or_one_by_one(
    spelled: list[str],
) -> None:
    flags = ["--policy", "random", "--env", RIG, "--env.cameras", *spelled]
    parsed = parse(Eval, flags, verb="eval")
    assert parsed.config["env_config"] == {"cameras": ["left", "right"]}
    assert parse(Eval, flags[:4], verb="eval").config["env_config"] == {}


def test_a_default_that_adapters_disagree_on_is_left_to_each() -> None:
    merged = adapters.settings_class("envs", [SMALL, LARGE])
    assert [field.name for field in dataclasses.fields(merged)] == [
        "size",
        "render",
        "weights",
        "name",
    ]
    assert adapters.given_settings(merged()) == {}
    assert adapters.given_settings(merged(size=224)) == {"size": 224}


def test_a_setting_of_a_type_that_flags_cannot_spell_is_read_as_yaml() -> None:
    parsed = parse(
        Eval,
        ["--env", LARGE, "--policy", PICKY, "--policy.path", "p", "--env.weights", "{a: [1, 2]}"],
        verb="eval",
    )
    assert parsed.config["env_config"] == {"weights": {"a": [1, 2]}}


@pytest.mark.parametrize(
    ("flag", "near"),
    [("--env.sise", "--env.size"), ("--episode", "--episodes"), ("--polcy", "--policy")],
)
def test_an_unknown_flag_is_refused_with_the_nearest(flag: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"no flag {flag}. Did you mean '{near}'"):
        parse(Eval, ["--env", SMALL, flag, "3"], verb="eval")


def test_help_shows_the_settings_of_the_named_env(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(Eval, ["--env", SMALL, "--help"], verb="eval")
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert "--env.render {full,fast}" in text
    assert "Pixels of a side." in text


def test_a_file_gives_what_flags_do_not_and_flags_override_it(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        f"env: [{SMALL}]\npolicy: {PICKY}\nepisodes: 3\nseed: 7\nworker_memory: 1024\n"
        "env_config: {render: fast, size: 5}\npolicy_config: {path: p}\nabout: {any: thing}\n"
    )
    parsed = parse(
        Eval, ["--config", str(file), "--seed", "8", "--env.render", "full"], verb="eval"
    )
    assert parsed.config["episodes"] == 3
    assert parsed.config["seed"] == 8
    assert parsed.config["worker_memory"] == 1024
    assert parsed.config["env_config"] == {"size": 5}
    assert parsed.config["policy_config"] == {"path": "p"}


def test_an_unknown_setting_in_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"env: [{SMALL}]\npolicy: {PICKY}\nenv_config: {{sise: 5}}\n")
    with pytest.raises(ConfigError, match="'sise'"):
        parse(Eval, ["--config", str(file), "--policy.path", "p"], verb="eval")


def test_flags_have_the_defaults_of_the_configuration_and_cover_all_of_it() -> None:
    fields = {field.name: field for field in dataclasses.fields(EvalConfig)}
    flags = {field.name: field for field in dataclasses.fields(Eval)}
    assert set(flags) - Eval.NOT_CONFIG == set(fields) - {"env_config", "policy_config"}
    for name in set(flags) - Eval.NOT_CONFIG:
        assert flags[name].default == fields[name].default, name


def test_flags_of_servers_may_be_short_where_the_policy_has_them() -> None:
    given = ["--env", "toy:count", "--policy", "openpi://h:1", "--ready-timeout=5"]
    parsed = parse(Eval, [*given, "--flush-on-reconnect"], verb="eval")
    assert parsed.config["policy_config"] == {"ready_timeout_s": 5.0, "flush_on_reconnect": True}
    with pytest.raises(UsageError, match="no flag --ready-timeout"):
        parse(Eval, ["--env", "toy:count", "--policy", "zero", "--ready-timeout", "5"], verb="eval")


def test_settings_of_a_policy_that_only_another_python_has_are_taken_as_they_are() -> None:
    given = ["--env", "toy:count", "--policy", "not_here:Policy", "--policy.gain", "0.5"]
    parsed = parse(Eval, [*given, "--policy-python", "there"], verb="eval")
    assert parsed.config["policy_config"] == {"gain": 0.5}
    with pytest.raises(UnknownNameError, match="not_here"):
        parse(Eval, given, verb="eval")
