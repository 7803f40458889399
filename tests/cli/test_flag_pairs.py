"""All pairs of the flags of `hocket eval` and of `hocket train`: each flag shows its effect in the
plan that the run uses, or the pair is refused in a sentence. Some pairs, drawn anew each time, run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import random
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hocket.cli import eval as eval_verb
from hocket.cli import train as train_verb
from hocket.cli.eval import Eval, plan_runs
from hocket.cli.flags.flag import flags_of
from hocket.cli.flags.parse import Parsed, knobs_of, parse_run
from hocket.cli.flags.plan import RunPlan
from hocket.cli.train import Train, plan_training
from hocket.errors import HocketError, UsageError
from hocket.records.run_file import load_run
from hocket.runs.config import EvalConfig
from hocket.runs.sites import SiteConfig
from hocket.runs.subject import Subject
from hocket.train.config import TrainConfig
from support.commands import run_here
from support.flag_samples import (
    CLONING_BASE,
    EVAL,
    EVAL_BASE,
    EVAL_FILES,
    NOT_CLONING,
    OF_OTHERS,
    SITES,
    TRAIN,
    TRAIN_BASE,
    TRAIN_FILES,
    Samples,
    Words,
    changed,
    facts,
    without,
    write_files,
)

Pair = tuple[str, str]
NOT_HERE = {*SITES, "runtime_config", "resume"} - {"machines"}
"""Flags that need other machines, a container, or a run that was interrupted."""


class Verb(NamedTuple):
    """One of the verbs, from words to a plan."""

    name: str
    samples: Samples
    base: Words
    parse: Callable[[list[str]], Parsed[Any]]
    plan: Callable[[Any, Mapping[str, Any]], RunPlan[Any]]
    plan_of: Callable[[list[str]], RunPlan[Any]]
    whole: str
    """The flag that stands for a whole command line, and takes few others beside it."""
    flags: frozenset[str]
    """All that it has."""
    config: type[Subject]
    idle: frozenset[str] = frozenset()
    """Those that this base alone refuses, as nothing would read them."""

    def line(self, *names: str) -> list[str]:
        """The command line of some flags, beside the base."""
        words = [word for name in names for word in self.samples[name]]
        return words if self.whole in names else [*without(self.base, words), *words]


EVAL_KNOBS, TRAIN_KNOBS = knobs_of(EvalConfig), knobs_of(TrainConfig, without=("policy_devices",))
SITE_FLAGS = {f"site.{field.name}" for field in dataclasses.fields(SiteConfig)}
VERBS = {
    "eval": Verb(
        "eval",
        EVAL,
        EVAL_BASE,
        lambda words: parse_run(Eval, EVAL_KNOBS, words, verb="eval"),
        plan_runs,
        eval_verb.plan_of,
        "jobs",
        frozenset({*EVAL_KNOBS, *flags_of(Eval), *SITE_FLAGS} - {"site"}),
        EvalConfig,
    ),
    "train": Verb(
        "train",
        TRAIN,
        TRAIN_BASE,
        lambda words: parse_run(Train, TRAIN_KNOBS, words, verb="train", evaluates_apart=True),
        plan_training,
        train_verb.plan_of,
        "resume",
        frozenset({*TRAIN_KNOBS, *flags_of(Train), *SITE_FLAGS} - {"site"}),
        TrainConfig,
        idle=frozenset(OF_OTHERS),
    ),
}
BASES = {
    **VERBS,
    "cloning": VERBS["train"]._replace(base=CLONING_BASE, idle=frozenset(NOT_CLONING)),
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that samples name."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {**EVAL_FILES, **TRAIN_FILES})
    begun = TrainConfig.from_plain({"env": "toy:count", "policy": "actor"})
    (tmp_path / "begun").mkdir()
    write_files(tmp_path / "begun", {"run.yaml": json.dumps(begun.to_plain())})
    return tmp_path


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_every_flag_has_a_sample(verb: Verb) -> None:
    settings = {"env_config", "policy_config", "runtime_config", "rtc_config", "eval_env_config"}
    assert verb.flags <= set(verb.samples)
    assert set(verb.samples) <= verb.flags | settings


@pytest.mark.parametrize("verb", BASES.values(), ids=list(BASES))
def test_each_flag_of_a_pair_shows_its_effect_or_the_pair_is_refused(
    desk: Path, verb: Verb
) -> None:
    for name in verb.idle:
        with pytest.raises(HocketError, match=r"belongs to|leave out"):
            verb.plan_of(verb.line(name))
    names = [name for name in verb.samples if name not in {verb.whole, *verb.idle}]
    base = verb.parse(list(verb.base))
    alone = {name: verb.parse(verb.line(name)) for name in names}
    bare = verb.plan(base.flags, base.config)
    plans = {name: verb.plan(parsed.flags, parsed.config) for name, parsed in alone.items()}
    effects = {name: changed(plan, bare) for name, plan in plans.items()}
    assert [name for name in names if not effects[name]] == []
    refused = {}
    for pair in itertools.combinations(names, 2):
        try:
            plan = verb.plan(*_joined(base, *(alone[name] for name in pair)))
        except HocketError as error:
            refused[pair] = str(error)
        else:
            _check_shown(pair, plan, bare, effects)
            _check_each_run(plan, [plans[name] for name in pair])
    _check_whole(verb, names, effects, refused)
    assert [f"{pair}: {told}" for pair, told in refused.items() if not _is_told(told)] == []
    assert len(refused) < len(names) * len(names) / 4


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--machines", "local:1", "--site.cpus", "2"], "--site.cpus belongs to --machines ray"),
        (["--machines", "ray", "--site.key-file", "k"], "--site.key-file belongs to --machines l"),
        (["--sites", "2"], "name the machines too"),
        (["--alpha", "0.1"], "alpha belongs to until='decided'"),
        (["--delay", "2"], "needs a --method"),
        (["--worker-memory", "3G"], "add --runtime local"),
        (["--worker-memory", "3G", "--lanes", "2", "--runtime", "inline"], "add --runtime local"),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        eval_verb.plan_of([*EVAL_BASE, *words])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--residual-scale", "0.1"], "--residual-scale belongs to --residual,"),
        (["--data-episodes", "2"], "--data-episodes belongs to --data,"),
        (["--max-staleness", "1"], "--max-staleness belongs to --mode async"),
        (
            ["--algo", "grpo", "--group", "2", "--value-only", "2"],
            "--value-only belongs to --algo ppo",
        ),
        (["--eval-every", "0", "--stop-at", "0.9"], "--stop-at belongs to --eval-every above 0"),
        (
            ["--eval-every", "0", "--eval-episodes", "20", "--eval-seed", "5"],
            "--eval-seed belongs to --eval-every above 0",
        ),
        (["--eval-every", "0"], "--eval-episodes belongs to --eval-every above 0"),
        (
            ["--eval-every", "0", "--eval-episodes", "20", "--eval.env.length-max", "9"],
            r"--eval\.env\.\* belongs to --eval-every above 0",
        ),
    ],
)
def test_a_flag_of_training_that_nothing_would_read_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        train_verb.plan_of([*TRAIN_BASE, *words])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--bc-weight", "1"], "--bc-weight belongs to --data with --algo ppo or grpo"),
        (["--epochs", "2"], "--epochs belongs to --algo ppo or grpo"),
        (["--target-kl", "0.1"], "--target-kl belongs to --algo ppo or grpo"),
        (["--batch", "8"], "--batch belongs to an algorithm that collects"),
    ],
)
def test_a_flag_that_cloning_would_not_read_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        train_verb.plan_of([*CLONING_BASE, *words])


def test_a_plan_of_training_has_no_output_of_its_own() -> None:
    assert not any("output" in line for line in train_verb.plan_of([*TRAIN_BASE]).describe())


def test_training_does_not_go_on_with_a_run_of_eval(tmp_path: Path) -> None:
    evaluated = EvalConfig.from_plain({"env": "toy:count", "policy": "scripted"})
    write_files(tmp_path, {"run.yaml": json.dumps(evaluated.to_plain())})
    with pytest.raises(UsageError, match=f"a run of hocket eval: .*hocket resume {tmp_path}"):
        train_verb.plan_of(["--resume", str(tmp_path)])


def _check_shown(
    pair: Pair,
    plan: RunPlan[Any],
    bare: RunPlan[Any],
    effects: Mapping[str, Mapping[str, frozenset[str]]],
) -> None:
    found, text = facts(plan), "\n".join(plan.describe())
    for one, other in (pair, pair[::-1]):
        for name, said in effects[one].items():
            # What both give is as one of them has it: on a command line the last one counts.
            assert found[name] in (said, effects[other].get(name, said)), (pair, name)
    for name in changed(plan, bare):
        if name != "is_dry":  # whoever reads the text asked for it
            assert _words_of(name) in text, (pair, name, text)


def _words_of(name: str) -> str:
    """What a described plan has of a thing that it says."""
    own = {"is_json": "output: JSON", "is_watched": "a page in the browser", "out": "folder: "}
    own |= {"readers": "readers: ", "machines": "machines: where=", "is_resumed": "goes on"}
    return own.get(name) or name.removesuffix(".").partition(".")[0]


def _check_each_run(plan: RunPlan[Any], alone: list[RunPlan[Any]]) -> None:
    """Where both flags mean several runs, each of one is made with each of the other; only of two
    --delay the last one counts."""
    delays = {str(getattr(run, "delay", 0)) for one in alone for run in one.runs.values()}
    if not delays > {"0", "1"}:
        assert len(plan.runs) == len(alone[0].runs) * len(alone[1].runs)
    assert plan.base is None or plan.base in plan.runs
    assert (plan.base is None) == plan.is_one


def _check_whole(
    verb: Verb,
    names: list[str],
    effects: Mapping[str, Mapping[str, frozenset[str]]],
    refused: dict[Pair, str],
) -> None:
    """The flag that stands for a whole command line, with each of the others."""
    bare = verb.plan_of(verb.line(verb.whole))
    for name in names:
        try:
            plan = verb.plan_of(verb.line(verb.whole, name))
        except HocketError as error:
            refused[verb.whole, name] = str(error)
            continue
        assert plan.runs == bare.runs
        found = facts(plan)
        assert all(found[key] == said for key, said in effects[name].items()), name


def _joined(base: Parsed[Any], *more: Parsed[Any]) -> tuple[Any, dict[str, Any]]:
    """What is parsed of a line with all that these lines say beside the base."""
    flags, config = base.flags, dict(base.config)
    for one in more:
        flags = _over(flags, one.flags, base.flags)
        for key, value in one.config.items():
            if value != base.config.get(key):
                is_group = isinstance(value, dict)
                config[key] = {**config.get(key, {}), **value} if is_group else value
    return flags, config


def _over(flags: Any, new: Any, base: Any) -> Any:
    values = {}
    for field in dataclasses.fields(new):
        old, now, before = (getattr(one, field.name) for one in (flags, new, base))
        if now != before:
            values[field.name] = _over(old, now, before) if field.name == "site" else now
    return dataclasses.replace(flags, **values)


def _is_told(text: str) -> bool:
    """True if an error is a line of words that ends as a sentence does."""
    return "\n" not in text and text.endswith(".") and len(text) < 300


# -- drawn pairs, really run -------------------------------------------------------------------


PAGE = "page"
"""A file in a folder that was shown."""


@contextlib.contextmanager
def _page(folder: Path, *, is_one_run: bool) -> Iterator[str]:
    """Stand for the page in the browser, whose process these runs need not start."""
    yield "http://here"
    if folder.is_dir():
        (folder / PAGE).touch()


def _drawn(verb: Verb, count: int) -> Iterator[list[str]]:
    """The command lines of `count` pairs of flags that a plan takes and that can be run here: other
    ones each time."""
    seed = secrets.randbits(32)
    sys.stdout.write(f"pairs of hocket {verb.name} are drawn with seed {seed}\n")
    pairs = list(itertools.combinations([n for n in verb.samples if n not in NOT_HERE], 2))
    random.Random(seed).shuffle(pairs)
    lines = (verb.line(*pair) for pair in pairs)
    yield from itertools.islice((words for words in lines if _is_taken(verb, words)), count)


def _is_taken(verb: Verb, words: list[str]) -> bool:
    try:
        verb.plan_of(words)
    except HocketError:
        return False
    return True


def _run(verb: Verb, words: list[str], folder: Path) -> None:
    """Run a command line as a user would, and hold what is left to the plan that it says."""
    plan = verb.plan_of(words)
    assert plan.out is not None
    done = run_here(folder, verb.name, *words)
    told = f"hocket {verb.name} {' '.join(words)}\n{done.stdout}\n{done.stderr}"
    assert done.returncode in (0, 1, 2), told
    if plan.is_dry:
        # Only another interpreter knows whether it has the env's module.
        assert done.returncode == 0 or "--env-python" in words, told
        assert not plan.out.exists() or plan.is_resumed, told
    elif plan.is_json and (done.returncode == 0 or not plan.is_one):
        json.loads(done.stdout)
    if done.returncode == 2:  # what only the policy or the env can refuse
        assert "hocket: " in done.stderr, told
    elif done.returncode == 1:
        _check_failed(plan, told)
    elif not plan.is_dry:
        _check_made(verb, plan, folder, told)


def _check_made(verb: Verb, plan: RunPlan[Any], folder: Path, told: str) -> None:
    assert plan.out is not None
    for name, config in plan.runs.items():
        own = folder / plan.out / eval_verb.folder_of(name)
        saved = verb.config.from_plain(load_run(own))
        assert saved.to_plain() == config.to_plain(), told
        for reader in plan.readers:
            assert own.with_name(f"{own.name}.{reader.partition('=')[2]}").exists(), told
    page = folder / plan.out / PAGE
    assert page.exists() == plan.is_watched, told


def _check_failed(plan: RunPlan[Any], told: str) -> None:
    """A run that failed says why: in the table of several, or as an error that is no traceback."""
    assert plan.out is not None
    if plan.is_one:
        assert "hocket: " in told or "errors" in told, told
        return
    rows = json.loads((plan.out / "jobs.json").read_text())["runs"]
    assert all(row["error"] or row["report"] for row in rows), told


def _run_drawn(verb: Verb, count: int, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.watch.process.beside", _page)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # for other interpreters
    for name in ("against", "recorded"):
        two = [*without(EVAL_BASE, ["--episodes"]), "--episodes", "2", "--out", name]
        assert run_here(desk, "eval", *two).returncode == 0
    lines = list(_drawn(verb, count))
    for number, words in enumerate(lines):
        folder = desk / str(number)
        folder.mkdir()
        for name in ("against", "recorded", *EVAL_FILES, *TRAIN_FILES):
            (folder / name).symlink_to(desk / name)
        monkeypatch.chdir(folder)
        _run(verb, words if "--out" in words else [*words, "--out", "run"], folder)


# Together 60, in parts that several processes of pytest can share.
@pytest.mark.parametrize("count", [17, 16, 15])
def test_drawn_pairs_of_eval_really_run(
    desk: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    _run_drawn(VERBS["eval"], count, desk, monkeypatch)


@pytest.mark.heavy
def test_drawn_pairs_of_train_really_run(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run_drawn(VERBS["train"], 12, desk, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_many_drawn_pairs_really_run(
    desk: Path, monkeypatch: pytest.MonkeyPatch, verb: Verb
) -> None:
    _run_drawn(verb, 200, desk, monkeypatch)
