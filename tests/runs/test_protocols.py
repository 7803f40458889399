"""Protocols: what a file sets, what a run says that it does otherwise, and claims judged by one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import yaml

import hocket
from hocket.adapters.envs.libero import Libero
from hocket.adapters.envs.maniskill import PORT, Simpler
from hocket.adapters.envs.metaworld import MetaWorld
from hocket.cli import main
from hocket.core.events import SpecLearned
from hocket.core.specs import EnvSpec, TaskInfo
from hocket.errors import ConfigError, UnknownNameError
from hocket.records.run_file import load_about, load_run
from hocket.results.card import Card
from hocket.results.card_text import markdown
from hocket.results.report import Report
from hocket.results.run_protocol import RunProtocol
from hocket.runs.arms import load_jobs
from hocket.runs.checks.card import write_card
from hocket.runs.config import EvalConfig
from hocket.runs.protocols import load_protocol, with_protocol
from hocket.runs.readers import AboutReader
from hocket.runs.run import Run

SHIPPED = ["libero", "metaworld-mt10", "metaworld-mt50", "simpler-widowx-ms3"]
MINE: dict[str, Any] = {
    "suite": "Counting",
    "port": "the toys of this package",
    "rule": "success at the last step alone",
    "by": "nobody",
    "settings": {
        "env": ["toy:count"],
        "episodes": 6,
        "seed": 40,
        "replan": 3,
        "env_config": {"length_max": 30, "max_steps": 25, "success_rule": "final"},
    },
    "tasks": {"toy:count": {"max_steps": 25, "control_rate": 20.0, "success_rule": "final"}},
}


@pytest.fixture
def mine(tmp_path: Path) -> str:
    return written(tmp_path / "mine.yaml")


def written(path: Path, **other: Any) -> str:
    path.write_text(yaml.safe_dump({**MINE, **other}))
    return str(path)


def toy(protocol: str, **settings: Any) -> EvalConfig:
    plain = {"policy": "scripted", "lanes": 1, "protocol": protocol, **settings}
    return EvalConfig.from_plain(with_protocol(plain))


def held(config: EvalConfig) -> RunProtocol:
    tasks = [TaskInfo(name="count", max_steps=25, control_rate=20.0, success_rule="final")]
    return load_protocol(config.protocol).of_run(config, {"toy:count": tasks})


@pytest.mark.parametrize("name", SHIPPED)
def test_a_protocol_of_the_package_says_all_and_differs_from_no_default_of_its_suite(
    name: str,
) -> None:
    protocol = load_protocol(name)
    said = protocol.about
    assert all((said.suite, said.port, said.rule, said.controller, said.by, said.unlike))
    if name == "simpler-widowx-ms3":
        assert protocol.facts == Simpler.facts == {"simulator": said.port}
    config = EvalConfig.from_plain(with_protocol({"policy": "zero", "protocol": name}))
    suites = {"libero": Libero, "metaworld": MetaWorld, "simpler": Simpler}
    tasks = {}
    for env in config.env:
        head, _, argument = env.partition(":")
        tasks[env] = suites[head](argument, suites[head].Config()).tasks()
    assert {suite.partition("/")[0] for suite in protocol.tasks} == set(tasks)
    found = protocol.of_run(config, tasks)
    assert (found.part, found.differs) == ((), ())
    planned = config.episodes * sum(map(len, tasks.values()))
    mt = {"metaworld-mt10": 500, "metaworld-mt50": 2500}
    assert planned == {"libero": 2000, **mt, "simpler-widowx-ms3": 96}[name]


def test_what_is_set_otherwise_is_named_and_what_is_left_out_is_a_part(mine: str) -> None:
    as_said = held(toy(mine))
    assert (as_said.part, as_said.differs) == ((), ())
    assert "as nobody run it" in as_said.sentence
    some = held(toy(mine, episodes=2))
    assert (some.part, some.differs) == (("2 of 6 episodes of each task",), ())
    assert "as nobody run it" not in some.sentence
    for key, value, told in [
        ("episodes", 7, "episodes is 7 here, 6 by the protocol"),
        ("seed", 41, "seed is 41 here, 40 by the protocol"),
        ("replan", None, "replan is not set here, 3 by the protocol"),
        ("ensemble", 0.01, "ensemble is 0.01 here, not set by the protocol"),
        ("perturb", "prompt:empty", "perturb is prompt:empty here, not set by the protocol"),
        ("max_steps", 9, "max_steps is 9 here, not set by the protocol"),
        ("env", "toy:image", "env is toy:image here, toy:count by the protocol"),
    ]:
        found = held(toy(mine, **{key: value}))
        assert told in found.differs, key
        assert "not as it says" in found.sentence
    own = {**MINE["settings"]["env_config"], "image_size": 48}
    assert held(toy(mine, env_config=own)).differs == (
        "env setting image_size is 48 here, 32 by the protocol",
    )
    # Settings of envs stand for all of the protocol's, and the defaults that come of it are told.
    assert (
        "env setting max_steps is not set here, 25 by the protocol"
        in held(toy(mine, env_config={})).differs
    )
    libero = with_protocol({"policy": "zero", "protocol": "libero", "env": "libero:goal"})
    goal = EvalConfig.from_plain(libero)
    assert load_protocol("libero").of_run(goal).part == (
        "libero:goal of libero:spatial, libero:object, libero:goal, libero:10",
    )


def test_what_tasks_and_envs_tell_is_held_against_the_protocol() -> None:
    libero = load_protocol("libero")
    tasks = Libero("10", Libero.Config(max_steps=300)).tasks()
    assert libero.gaps("libero:10", tasks[0]) == [
        "max_steps of libero:10 is 300 here, 520 by the protocol"
    ]
    assert libero.gaps("libero:10", Libero("10", Libero.Config()).tasks()[0], 7) == [
        "max_steps of libero:10 is 7 here, 520 by the protocol"
    ]
    info = Libero("goal", Libero.Config()).tasks()[0]
    assert libero.gaps("libero:goal", info, facts={"assets": "LIBERO's"}) == []
    assert libero.gaps("libero:goal", info, facts={"assets": "stand-ins"}) == [
        "assets is stand-ins here, LIBERO's by the protocol"
    ]
    simpler = load_protocol("simpler-widowx-ms3")
    assert simpler.about.port == simpler.facts["simulator"] == PORT
    sink = TaskInfo(
        name="PutEggplantInBasketScene-v1", max_steps=60, control_rate=5.0, success_rule="first"
    )
    assert simpler.gaps("simpler:widowx", sink, facts={}) == [
        f"simulator is not set here, {simpler.about.port} by the protocol",
        "max_steps of simpler:widowx/PutEggplantInBasketScene-v1 is 60 here, 120 by the protocol",
        "success_rule of simpler:widowx/PutEggplantInBasketScene-v1 is first here, final by the "
        "protocol",
    ]


def test_bad_protocols_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"no protocol 'libro'.*'libero'"):
        load_protocol("libro")
    with pytest.raises(UnknownNameError, match=r"no protocol '\.\./secret'"):
        load_protocol("../secret")
    path = tmp_path / "bad.yaml"
    for other, told in [
        ({"port": ""}, "does not say its port"),
        ({"goal": 1}, "says 'goal'"),
        ({"settings": {"delay": 3}}, "says 'delay'"),
        ({"settings": {"env": ["toy:count"], "episodes": 0}}, "episodes is 0"),
        ({"tasks": {"toy:count": {"limit": 3}}}, "says 'limit'"),
        ({"tasks": ["toy:count"]}, "something else than mappings"),
    ]:
        with pytest.raises(ConfigError, match=told):
            load_protocol(written(path, **other))


def test_a_run_by_a_protocol_names_it_in_its_file_its_report_and_on_its_card(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["eval", "--protocol", mine, "--policy", "scripted", "--lanes", "1"]
    out = tmp_path / "run"
    assert main([*given, "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "note: Protocol" in said.err
    assert "as nobody run it." in " ".join(said.out.split())
    kept = load_run(out)
    assert kept["protocol"] == mine
    assert (kept["env"], kept["episodes"], kept["seed"], kept["replan"]) == (
        ["toy:count"],
        *(6, 40, 3),
    )
    about = load_about(out)["protocol"]
    assert (about["suite"], about["port"], about["rule"]) == (
        MINE["suite"],
        MINE["port"],
        MINE["rule"],
    )
    assert (about["part"], about["differs"]) == ([], [])
    assert {e.trial.seed for e in Report.load(out).episodes} == set(range(40, 46))
    write_card(out, tmp_path / "card")
    card = Card.load(tmp_path / "card" / "card.json")
    found = RunProtocol.of(card.report.provenance)
    assert found is not None
    assert found.sentence == RunProtocol(**{**about, "part": (), "differs": ()}).sentence
    assert "the toys of this package" in markdown(card)

    # A flag wins, is told, and the default of an env that is not the protocol's stays one.
    again = tmp_path / "again"
    assert main([*given, "--replan", "2", "--env.max-steps", "24", "--out", str(again)]) == 0
    for text in (told := capsys.readouterr()).err, told.out:
        words = " ".join(text.split())
        assert "replan is 2 here, 3 by the protocol" in words
        assert "max_steps of toy:count is 24 here, 25 by the protocol" in words
    assert load_run(again)["env_config"] == {**MINE["settings"]["env_config"], "max_steps": 24}
    same = EvalConfig.from_plain(with_protocol(load_run(again)))
    with Run.open(again) as run:
        assert run.config == same


def test_jobs_and_python_take_protocols_too(mine: str, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text(
        yaml.safe_dump({"shared": {"protocol": mine, "policy": "zero"}, "runs": {"a": None}})
    )
    config = load_jobs(jobs).runs["a"]
    assert (config.env, config.episodes, config.replan) == (("toy:count",), 6, 3)
    report = hocket.evaluate(
        env="toy:count", policy="zero", protocol=mine, lanes=1, episodes=2, out=tmp_path / "run"
    )
    assert "2 of 6 episodes of each task" in report.summary


def test_the_port_that_an_env_tells_is_what_is_kept(tmp_path: Path) -> None:
    name = written(tmp_path / "port.yaml", facts={"simulator": "the published one"})
    report = hocket.evaluate(
        env="toy:count", policy="scripted", protocol=name, lanes=1, out=tmp_path / "run"
    )
    assert load_about(tmp_path / "run")["protocol"]["differs"] == [
        "simulator is not set here, the published one by the protocol"
    ]
    assert "not as it says: simulator is not set here" in report.summary


# -- claims ----------------------------------------------------------------------------------------


def claims(tmp_path: Path, episodes: int) -> str:
    return written(
        tmp_path / "choice.yaml",
        settings={"env": ["support.carded:Choice"], "episodes": episodes},
        tasks={"support.carded:Choice": {"success_rule": "first"}},
        unlike="Published numbers are of another port.",
    )


def judged(
    capsys: pytest.CaptureFixture[str], protocol: str, claim: str, n: int, *more: str
) -> tuple[int, dict[str, Any]]:
    given = ["reproduce", "--claim", claim, "--n", str(n), "--protocol", protocol, "--json"]
    policy = ["--policy", "support.carded:HalfAble", "--lanes", "1"]
    code = main([*given, *policy, *more])
    said = capsys.readouterr()
    assert "note: Protocol" in said.err
    return code, json.loads(said.out)


def test_a_claim_is_judged_by_the_difference_with_both_n(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    protocol = claims(tmp_path, 300)
    code, found = judged(capsys, protocol, "53.2", 500, "--within", "12")
    assert (code, found["verdict"]) == (0, "agrees")
    assert (found["here"]["n"], found["claim"]["n"]) == (300, 500)
    assert found["claim"]["rate"] == pytest.approx(0.532)
    assert "53.2 % claimed (n = 500)" in found["sentence"]
    assert "Published numbers are of another port." in found["sentence"]
    assert "the claim is of 500 trials, this run of 300" in found["differences"]
    # Newcombe's interval from the two Wilson intervals, by hand.
    ours, z = found["here"]["rate"], 1.959963984540054

    def wilson(p: float, n: int) -> tuple[float, float]:
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return centre - half, centre + half

    (low, _), (_, high) = wilson(ours, 300), wilson(0.532, 500)
    assert found["low"] == pytest.approx(ours - 0.532 - np.hypot(ours - low, high - 0.532))

    code, found = judged(capsys, protocol, "90", 50)
    assert (code, found["verdict"]) == (1, "differs")
    code, found = judged(capsys, protocol, "53", 500, "--episodes", "20", "--within", "9")
    assert (code, found["verdict"]) == (1, "undecided")
    assert "more trials would tell" in found["sentence"]
    assert found["protocol"]["part"] == ["20 of 300 episodes of each task"]


def test_rates_that_agree_confirm_no_claim_where_the_run_is_not_the_protocols(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    protocol = claims(tmp_path, 300)
    code, found = judged(capsys, protocol, "53", 500, "--within", "12", "--max-steps", "2")
    assert (code, found["verdict"]) == (1, "agrees")
    assert "not as it says: max_steps is 2 here, not set by the protocol" in found["sentence"]


def test_a_rate_that_no_such_trials_give_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    protocol = claims(tmp_path, 10)
    told = judged(capsys, protocol, "78.4", 50)[1]["differences"]
    assert "no 50 trials give 78.4 %: the nearest is 78.00 %" in told
    assert not any("no 3 trials" in text for text in judged(capsys, protocol, "67", 3)[1])


def test_claims_that_cannot_be_judged_are_refused_in_words(
    mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, told in {
        "--claim 78.4 --n 500 --protocol nowhere": "There is no protocol 'nowhere'",
        "--claim 78.4 --n 500": "needs its --n, the trials behind it, and --protocol",
        f"--claim 784 --n 500 --protocol {mine}": "is no rate in per cent",
        f"--claim nan --n 500 --protocol {mine}": "is no rate in per cent",
        f"--claim 78 --n 0 --protocol {mine}": "is no rate in per cent",
        f"card.json --claim 78 --n 9 --protocol {mine}": "two things to reproduce",
        "--env toy:count": "Name a card",
    }.items():
        assert main(["reproduce", *given.split(), "--policy", "zero"]) == 2, given
        assert told in capsys.readouterr().err


def test_what_an_earlier_leg_told_of_its_port_stays(tmp_path: Path) -> None:
    name = written(tmp_path / "port.yaml", facts={"assets": "ours"})
    config, out = toy(name), tmp_path / "run"
    told = "assets is theirs here, ours by the protocol"

    def learned(*facts: str) -> list[str]:
        reader = AboutReader(out, config, {})
        task = TaskInfo(name="count", max_steps=25, control_rate=20.0, success_rule="final")
        for each in facts:
            spec = SimpleNamespace(task=task, facts={"assets": each}, abilities=())
            reader.on(SpecLearned(time=0.0, suite="toy:count", spec=cast(EnvSpec, spec)))
        return load_about(out)["protocol"]["differs"]

    assert learned("ours") == []
    assert learned("theirs", "theirs") == [told]
    assert learned() == [told]
    assert learned("ours") == [told]


def test_a_protocol_is_not_of_an_env_that_lacks_its_settings() -> None:
    told = r"'libero' sets .*vla-eval:libero does not have.*libero:goal"
    with pytest.raises(ConfigError, match=told):
        with_protocol({"protocol": "libero", "env": ["vla-eval:libero"]})
    kept = with_protocol({"protocol": "libero", "env": ["libero:goal"]})
    assert kept["env_config"]["settle_steps"] == 10
    own = with_protocol({"protocol": "libero", "env": "toy:count", "env_config": {}})
    assert (own["env"], own["replan"]) == ("toy:count", 5)


def test_an_env_of_another_kind_is_refused_by_name_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--protocol", "libero", "--env", "vla-eval:libero", "--policy", "zero", "--dry-run"]
    assert main(["eval", *words]) == 2
    assert "'libero' sets mirrored, which vla-eval:libero does not have" in capsys.readouterr().err
