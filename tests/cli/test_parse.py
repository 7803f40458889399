import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest

from hocket.cli.eval import Eval
from hocket.cli.flags.flag import env_settings, scan
from hocket.cli.flags.parse import Parsed, knobs_of, parse_run
from hocket.cli.flags.values import FIELDS, SITE_FIELDS
from hocket.errors import ConfigError, UnknownNameError
from hocket.runs.config import EvalConfig
from hocket.runs.sites import SiteConfig
from hocket.train.config import TrainConfig


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


def parse(arguments: list[str]) -> Parsed[Eval]:
    return parse_run(Eval, knobs_of(EvalConfig), arguments, verb="eval")


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exit_:
        parse(arguments)
    assert exit_.value.code == 2
    return capsys.readouterr().err


def test_a_name_is_found_before_there_is_a_parser_and_the_last_counts() -> None:
    assert scan(["--env", "a", "--env=b"], "--env") == "b"
    assert scan(["--env.size", "3"], "--env") is None


def test_settings_of_the_named_adapters_are_flags() -> None:
    parsed = parse(["--env", SMALL, "--policy", PICKY, "--env.size", "8", "--policy.path", "p"])
    assert parsed.config["env_config"] == {"size": 8}
    assert parsed.config["policy_config"] == {"path": "p"}
    assert parsed.config["env"] == [SMALL]


@pytest.mark.parametrize("spelled", [["left,right"], ["left", "right"]])
def test_several_words_are_given_with_commas_as_names_are_or_one_by_one(
    spelled: list[str],
) -> None:
    flags = ["--policy", "random", "--env", RIG, "--env.cameras", *spelled]
    parsed = parse(flags)
    assert parsed.config["env_config"] == {"cameras": ["left", "right"]}
    assert parse(flags[:4]).config["env_config"] == {}


def test_keys_of_a_lerobot_policy_are_renamed_as_its_page_says() -> None:
    keys = ["--policy.keys", "observation.images.top", "observation/image"]
    parsed = parse(["--env", SMALL, "--policy", "lerobot:folder", *keys])
    assert parsed.config["policy_config"] == {
        "keys": {"observation.images.top": "observation/image"}
    }


def test_a_default_that_adapters_disagree_on_is_left_to_each() -> None:
    assert list(env_settings([SMALL, LARGE]).flags) == ["size", "render", "weights", "name"]
    given = ["--env", f"{SMALL},{LARGE}", "--policy", "zero"]
    assert parse(given).config["env_config"] == {}
    assert parse([*given, "--env.size", "224"]).config["env_config"] == {"size": 224}


def test_a_setting_of_a_type_that_flags_cannot_spell_is_read_as_yaml() -> None:
    parsed = parse(
        ["--env", LARGE, "--policy", PICKY, "--policy.path", "p", "--env.weights", "{a: [1, 2]}"]
    )
    assert parsed.config["env_config"] == {"weights": {"a": [1, 2]}}


@pytest.mark.parametrize(
    ("flag", "near"),
    [("--env.sise", "--env.size"), ("--episode", "--episodes"), ("--polcy", "--policy")],
)
def test_an_unknown_flag_is_refused_with_the_nearest(
    flag: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refusal(["--env", SMALL, "--policy", "zero", flag, "3"], capsys)
    assert f"Unrecognized options: {flag}" in told
    assert f"{near} " in told


def test_a_misspelt_flag_is_not_taken_for_a_word_of_the_flag_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = refusal(
        ["--policy", "zero", "--env", RIG, "--env.cameras", "a", "--episode", "3"], capsys
    )
    assert "--episodes INT" in told


def test_help_shows_the_settings_of_the_named_env(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(["--env", SMALL, "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert "--env.render {full,fast}" in text
    assert "Pixels of a side." in text


def test_a_file_gives_what_flags_do_not_and_flags_override_it(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        f"env: [{SMALL}]\npolicy: {PICKY}\nepisodes: 3\nseed: 7\nworker_memory: 1024\n"
        "env_config: {render: fast, size: 5}\npolicy_config: {path: p}\nabout: {format: 4}\n"
    )
    parsed = parse(["--config", str(file), "--seed", "8", "--env.render", "full"])
    assert parsed.config["episodes"] == 3
    assert parsed.config["seed"] == 8
    assert parsed.config["worker_memory"] == 1024
    assert parsed.config["env_config"] == {"size": 5}
    assert parsed.config["policy_config"] == {"path": "p"}


def test_an_unknown_setting_in_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"env: [{SMALL}]\npolicy: {PICKY}\nenv_config: {{sise: 5}}\n")
    with pytest.raises(ConfigError, match="'sise'"):
        parse(["--config", str(file), "--policy.path", "p"])


def test_an_env_in_a_file_that_is_no_name_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="env is 5; it must be a list of names"):
        EvalConfig.from_plain({"env": 5, "policy": "zero"})


def test_flags_that_are_not_given_leave_the_configuration_its_defaults() -> None:
    parsed = parse(["--env", SMALL, "--policy", "zero"])
    assert EvalConfig.from_plain(parsed.config) == EvalConfig(env=(SMALL,), policy="zero")


@pytest.mark.parametrize("config", [EvalConfig, TrainConfig])
def test_every_knob_has_a_help(config: type[Any]) -> None:
    helps = {name: flag.help for name, flag in knobs_of(config).items()}
    assert [name for name, text in helps.items() if not (text and text())] == []


def test_only_knobs_that_exist_are_spelled() -> None:
    assert set(FIELDS) <= {*knobs_of(EvalConfig), *knobs_of(TrainConfig)}
    assert set(SITE_FIELDS) <= {field.name for field in dataclasses.fields(SiteConfig)}


def test_flags_of_servers_may_be_short_where_the_policy_has_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--env", "toy:count", "--policy", "openpi://h:1", "--ready-timeout=5"]
    parsed = parse([*given, "--flush-on-reconnect"])
    assert parsed.config["policy_config"] == {"ready_timeout_s": 5.0, "flush_on_reconnect": True}
    told = refusal(["--env", "toy:count", "--policy", "zero", "--ready-timeout", "5"], capsys)
    assert "Unrecognized options: --ready-timeout" in told


def test_settings_of_a_policy_that_only_another_python_has_are_taken_as_they_are() -> None:
    given = ["--env", "toy:count", "--policy", "not_here:Policy", "--policy.gain", "0.5"]
    parsed = parse([*given, "--policy-python", "there"])
    assert parsed.config["policy_config"] == {"gain": 0.5}
    with pytest.raises(UnknownNameError, match="not_here"):
        parse(given)


def test_settings_of_the_named_runtime_are_flags(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["--env", SMALL, "--policy", PICKY, "--policy.path", "p"]
    parsed = parse([*names, "--runtime", "podman:x:1", "--runtime.memory", "4g"])
    assert parsed.config["runtime"] == "podman:x:1"
    assert parsed.config["runtime_config"] == {"memory": "4g"}
    assert parse(names).config["runtime_config"] == {}
    assert "--runtime.memory" in refusal([*names, "--runtime.memory", "4g"], capsys)
    with pytest.raises(UnknownNameError, match="Did you mean 'docker'"):
        parse([*names, "--runtime", "dokcer:x"])


def test_how_long_a_start_may_take_is_a_flag() -> None:
    names = ["--env", SMALL, "--policy", PICKY, "--policy.path", "p"]
    assert parse([*names, "--start-timeout", "240"]).config["start_timeout_s"] == 240.0
