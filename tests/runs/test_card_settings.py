"""Settings of a card: values are taken, what may name code or a place is the user's to confirm."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.cli import main
from hocket.errors import UsageError
from hocket.results.card import Card
from hocket.results.card_text import check_command, markdown
from hocket.runs.checks.card import check_card, config_for, reproduce, write_card
from hocket.runs.checks.card_plan import settings_told
from hocket.runs.config import EvalConfig

ENV, POLICY = "support.carded:Tuned", "support.carded:Pushy"
SET = {
    "env_config": {"above": 0.5, "strict": False, "mode": "odd", "sizes": [3, 4]},
    "policy_config": {"force": 0.9},
}


def carded(folder: Path, **settings: Any) -> Card:
    names = {"env": ENV, "policy": POLICY, "episodes": 30, "lanes": 1}
    hocket.evaluate(**{**names, **settings}, out=folder / "run")
    write_card(folder / "run", folder / "card")
    return Card.load(folder / "card" / "card.json")


def asked(**settings: Any) -> EvalConfig:
    return EvalConfig.from_plain({"env": ENV, "policy": POLICY, "lanes": 1, **settings})


def test_values_are_the_cards_and_the_check_is_equal_to_the_bit(tmp_path: Path) -> None:
    card = carded(tmp_path, **SET, replan=2, perturb="state:noise=0.01", max_steps=2, ensemble=0.0)
    config = config_for(card, asked())
    assert config.env_config == SET["env_config"]
    assert config.policy_config == SET["policy_config"]
    assert (config.replan, config.max_steps, config.ensemble) == (2, 2, 0.0)
    assert check_card(card, config, sample=10).standing == "equal"
    assert settings_told(card, config) == [
        "The card's settings that are not the defaults: replan 2, ensemble 0.0, max_steps 2, "
        "perturb state:noise=0.01, env.above 0.5, env.strict False, env.mode odd, "
        "env.sizes [3, 4], policy.force 0.9."
    ]
    assert "env.above 0.5, env.strict False" in markdown(card)


def test_the_command_on_a_card_gives_every_setting_as_the_run_had_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"env_config": {**SET["env_config"], "assets": "a b/c.xml"}}
    card = carded(tmp_path, **given, policy_config={"force": -0.5, "weights": "w.npz"})
    monkeypatch.chdir(tmp_path / "card")
    (line,) = [line for line in markdown(card).splitlines() if "hocket verify" in line]
    words = shlex.split(line)
    assert main([*words[1:], "--lanes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "equal"


@pytest.mark.parametrize(
    ("group", "settings", "flags"),
    [
        ("env_config", {"assets": "plain"}, "--env.assets plain"),
        ("policy_config", {"weights": "http://host/w"}, "--policy.weights http://host/w"),
        ("policy_config", {"weights": "support.carded:Rooms"}, "--policy.weights support"),
    ],
)
def test_what_may_name_something_is_shown_as_the_command_that_confirms_it(
    tmp_path: Path, group: str, settings: dict[str, Any], flags: str
) -> None:
    card = carded(tmp_path, **{group: settings})
    with pytest.raises(UsageError, match="never taken from a card") as refused:
        config_for(card, asked())
    command = str(refused.value).partition("hocket verify ")[2]
    assert f"--env {ENV} --policy {POLICY}" in command
    assert flags in command
    (key,) = settings
    confirmed = config_for(card, asked(**{group: {key: "/my/own"}}))
    assert getattr(confirmed, group)[key] == "/my/own"
    assert check_card(card, confirmed, sample=3).standing == "equal"


def test_a_value_of_another_type_than_the_setting_is_never_taken(tmp_path: Path) -> None:
    card = carded(tmp_path)
    for key, value in {
        "above": "import os",
        "sizes": [1, "x"],
        "lenient": "true",
        "mode": "code",
        "unknown": 3,
    }.items():
        card.report.config["env_config"].clear()
        card.report.config["env_config"][key] = value
        with pytest.raises(UsageError, match="never taken from a card"):
            config_for(card, asked())


def test_texts_are_taken_where_the_adapter_says_that_they_name_nothing(tmp_path: Path) -> None:
    card = carded(tmp_path, env="gym:Pendulum-v1", policy="zero", episodes=1, max_steps=3)
    settings = card.report.config["env_config"]
    gym = EvalConfig.from_plain({"env": "gym:Pendulum-v1", "policy": "zero"})
    settings["prompt"] = "swing up"
    assert config_for(card, gym).env_config == {"prompt": "swing up"}
    for text in ("os:system", "/etc/passwd", "http://x", "~/x", "a\\b", "os.system", "weights.pt"):
        settings["prompt"] = text
        with pytest.raises(UsageError, match="never taken from a card"):
            config_for(card, gym)
    settings.clear()
    settings["kwargs"] = '{"xml_file": "/etc/passwd"}'
    with pytest.raises(UsageError, match=r"--env\.kwargs"):
        config_for(card, gym)


def test_prompts_of_a_file_are_never_read_for_a_card(tmp_path: Path) -> None:
    card = carded(tmp_path)
    card.report.config["perturb"] = "prompt:file=/etc/passwd"
    with pytest.raises(UsageError, match=r"made with perturb.* --perturb prompt:file=/etc/passwd"):
        config_for(card, asked())


def test_interpreter_runtime_and_paths_of_a_card_are_not_used(tmp_path: Path) -> None:
    card = carded(tmp_path)
    evil = {"env_python": "/evil/python", "policy_python": "/evil/python", "runtime": "docker:evil"}
    card.report.config.update(
        evil, against="/evil/run", until="decided", video="all", record="full"
    )
    config = config_for(card, asked())
    assert (config.env_python, config.policy_python, config.runtime) == (None, None, "auto")
    assert (config.against, config.until, config.video) == (None, "done", "none")
    command = check_command(card.report.config, "card.json")
    assert "--env-python /evil/python" in command
    assert "--runtime docker:evil" in command


def test_flags_win_and_a_difference_is_said_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    carded(tmp_path, **SET)
    given = [str(tmp_path / "card" / "card.json"), "--env", ENV, "--policy", POLICY, "--lanes", "1"]
    assert main(["verify", *given, "--policy.force", "1", "--sample", "5", "--json"]) == 0
    said = capsys.readouterr()
    assert "note: policy.force is the default here, 0.9 on the card" in said.err
    assert said.err.index("policy.force") < said.err.index("preparing")
    assert main(["verify", *given, "--env.above", "0.0"]) == 2
    said = capsys.readouterr()
    assert "cannot be paired" in said.err
    assert "episodes" not in said.err
    assert main(["reproduce", *given, "--env.above", "0.0", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["paired"] is False


@pytest.mark.parametrize(("made", "given"), [("fast", "full"), ("full", "fast")])
def test_nothing_is_paired_checked_or_reproduced_across_renderings(
    made: str, given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = {"env": "metaworld:reach-v3", "policy": "zero", "episodes": 1, "max_steps": 2}
    settings = {"full": {}, "fast": {"env_config": {"render": "fast"}}}
    card = carded(tmp_path, **env, **settings[made])
    assert card.report.provenance["settings"]["metaworld:reach-v3"]["render"] == made
    hocket.evaluate(**env, **settings[given], lanes=1, out=tmp_path / "other")
    told = [str(card.path), "--env", env["env"], "--policy", "zero", "--lanes", "1"]
    for arguments in (
        ["compare", str(tmp_path / "run"), str(tmp_path / "other")],
        ["compare", str(card.path), str(tmp_path / "other")],
        ["verify", *told, "--env.render", given],
        ["reproduce", *told, "--env.render", given],
    ):
        assert main(arguments) == 2, arguments
        said = " ".join(capsys.readouterr().err.split())
        assert "env setting render is" in said, arguments
        assert "episodes" not in said
    assert main(["verify", *told, "--sample", "1", "--json"]) == 0


def test_settings_of_a_policy_of_another_kind_are_left_alone(tmp_path: Path) -> None:
    card = carded(tmp_path, policy_config={"weights": "x.pt", "force": 0.9})
    config = config_for(card, asked(policy="random"))
    assert config.policy_config == {}


# -- reproduce -------------------------------------------------------------------------------------

CHOICE = "support.carded:Choice"


@pytest.fixture(scope="module")
def able(tmp_path_factory: pytest.TempPathFactory) -> Card:
    folder = tmp_path_factory.mktemp("able")
    return carded(folder, env=CHOICE, policy="support.carded:Able", episodes=200)


def again(card: Card, policy: str, **settings: Any) -> Any:
    config = asked(env=CHOICE, policy=f"support.carded:{policy}")
    return reproduce(card, config_for(card, config), **settings)


def test_a_run_of_the_same_trials_is_paired_and_agrees(able: Card) -> None:
    found = again(able, "Able")
    assert (found.standing, found.is_paired) == ("agrees", True)
    assert found.sentence.startswith("Agrees within ±1.")
    assert found.differences == ()


def test_a_worse_policy_differs_and_what_differs_is_named(able: Card) -> None:
    found = again(able, "LessAble")
    assert found.standing == "differs"
    assert found.sentence.startswith("Differs: ")
    assert found.differences == (
        "policy is support.carded:LessAble here, support.carded:Able on the card",
    )


def test_other_starts_are_compared_as_two_rates(able: Card) -> None:
    found = again(able, "Able", seed=5000, within=0.1)
    assert (found.standing, found.is_paired) == ("agrees", False)
    assert "not paired, since the starts differ" in found.sentence
    assert "seeds begin with 5000 here, 0 on the card" in found.differences


def test_too_few_trials_say_about_how_many_more_would_tell(able: Card, tmp_path: Path) -> None:
    found = again(able, "AsAble", n=12, out=tmp_path / "kept")
    assert found.standing == "undecided"
    more = found.gap.more_needed(found.within)
    assert f"about {more:,} more trials would tell" in found.sentence
    assert again(able, "AsAble", n=12 + more).standing == "agrees"
    assert (tmp_path / "kept" / "report.json").exists()
