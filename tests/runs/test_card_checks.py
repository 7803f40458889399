from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import hocket
from hocket.cli import main
from hocket.errors import UsageError
from hocket.records.run_file import load_about
from hocket.results.card import Card
from hocket.results.report import Report
from hocket.runs.checks.card import CardCheck, check_card, config_for, write_card
from hocket.runs.config import EvalConfig

ENV = "support.carded:Choice"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    hocket.evaluate(
        env=ENV, policy="support.carded:Able", out=folder / "run", episodes=120, lanes=1
    )
    write_card(folder / "run", folder)
    return folder / "card.json"


def check(card: Path, policy: str, sample: int = 50, **settings: float) -> CardCheck:
    found = Card.load(card)
    config = EvalConfig.from_plain({"env": ENV, "policy": f"support.carded:{policy}", "lanes": 1})
    return check_card(found, config_for(found, config), sample=sample, **settings)


def test_a_card_of_the_same_policy_is_verified_to_the_bit(card: Path) -> None:
    found = check(card, "Able")
    assert (found.standing, found.sampled, found.equal) == ("equal", 50, 50)
    assert found.sentence == "Verified: all 50 trials are equal to the card to the bit."
    assert found.differences == ()


def test_a_policy_that_is_20_points_worse_refutes_a_card_by_outcomes_alone(card: Path) -> None:
    document = json.loads(card.read_text())
    document["provenance"] = {}
    stripped = card.with_name("stripped.json")
    stripped.write_text(json.dumps(document))
    found = check(stripped, "LessAble")
    assert found.standing == "refuted"
    assert found.sentence.startswith("Refuted: -")
    assert "policy is support.carded:LessAble here" in found.differences[0]


def test_what_is_not_equal_to_the_bit_agrees_within_points_or_is_too_little(card: Path) -> None:
    agrees = check(card, "AsAble", 120)
    assert (agrees.standing, agrees.equal < 120) == ("agrees", True)
    assert agrees.sentence.startswith("Agrees within ±")
    few = check(card, "AsAble", 10, within=0.05)
    assert few.standing == "undecided"
    assert "give a larger --sample" in few.sentence


def test_names_of_a_card_are_never_imported(card: Path, tmp_path: Path) -> None:
    text = card.read_text().replace("support.carded", "no_such_module_anywhere")
    (tmp_path / "card.json").write_text(text)
    found = Card.load(tmp_path / "card.json")
    assert found.report.config["env"] == ["no_such_module_anywhere:Choice"]
    config = EvalConfig.from_plain({"env": ENV, "policy": "random"})
    with pytest.raises(UsageError, match="is of no_such_module_anywhere:Choice, but"):
        check_card(found, config_for(found, config), sample=5)


def test_verify_exits_with_1_where_a_card_is_refuted(
    card: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["verify", str(card), "--env", ENV, "--lanes", "1", "--json"]
    assert main([*given, "--policy", "support.carded:Able", "--sample", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "equal"
    assert main([*given, "--policy", "support.carded:LessAble", "--sample", "60"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "refuted"


def test_a_run_names_what_its_numbers_depend_on(card: Path) -> None:
    run = card.parent / "run"
    about = load_about(run)
    assert len(about["code"]["support.carded"]["sha256"]) == 64
    assert about["hardware"]["cpu"]
    assert about["chunks"]["replan"] == 3
    report = Report.load(run)
    assert report.provenance["code"] == about["code"]
    assert report.provenance["tasks"][f"{ENV}/Choice"]["max_steps"] == 3
    assert "command" not in report.provenance
    hub = yaml.safe_load((card.parent / ".eval_results" / "support.carded-Choice.yaml").read_text())
    assert hub[0]["value"] == round(100 * (report.overall.rate or 0), 4)


def test_the_demo_names_its_weights_its_model_and_its_renderer(tmp_path: Path) -> None:
    pytest.importorskip("metaworld")
    settings = {"episodes": 1, "lanes": 1, "max_steps": 2, "video": "none"}
    hocket.evaluate(env="metaworld:reach-v3", policy="reference", out=tmp_path / "run", **settings)
    about = load_about(tmp_path / "run")
    assert len(about["files"]["reference.npz"]) == 64
    assert about["settings"]["metaworld:reach-v3"]["size"] == 224
    facts = Report.load(tmp_path / "run").provenance["tasks"]["metaworld:reach-v3/reach-v3"]
    assert len(facts["model_sha256"]) == 64
    assert facts["control_rate"] == 80


@pytest.mark.slow
def test_a_card_is_verified_on_another_checkout(card: Path, tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("This is no checkout.")
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "-q", "--detach", str(tmp_path / "other"), "HEAD"], check=True)
    try:
        other = tmp_path / "other"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "hocket", "verify", str(card), "--env", ENV),
                *("--policy", "support.carded:Able", "--sample", "50", "--lanes", "2"),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{other / 'src'}:{other / 'tests'}"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        subprocess.run([*git, "remove", "--force", str(tmp_path / "other")], check=True)
    assert done.returncode == 0, done.stderr
    assert "Verified: all 50 trials are equal to the card to the bit." in done.stdout
