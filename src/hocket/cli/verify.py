"""`hocket card` writes a card; `hocket verify` and `hocket reproduce` run its plan, and compare;
`hocket replay` runs one trial of a run again."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from hocket.cli.flags.flag import scan
from hocket.cli.flags.parse import Parsed, is_help, knobs_of, parse, parse_run
from hocket.errors import UsageError
from hocket.runs.config import EvalConfig
from hocket.system import machine
from hocket.system.text import printable

if TYPE_CHECKING:
    from hocket.results.card import Card
    from hocket.results.comparing.gap import Gap


from hocket.cli.flags.parse import parse_with_runtime

_KNOBS = (
    *("env", "policy", "lanes", "retries", "env_python", "policy_python", "policy_devices"),
    *("runtime", "start_timeout_s", "step_timeout_s", "infer_timeout_s", "worker_memory"),
)


_OF_CLAIMS = ("protocol", "episodes", "max_steps")
"""What else may be set where no card says it."""


@dataclass(frozen=True, kw_only=True)
class CardRunFlags:
    """What verbs that run a card's plan have in common."""

    perturb: Annotated[str, arg(metavar="FACTOR")] = ""
    """Confirms the file of a card that was made with --perturb prompt:file=FILE. Any other
    disturbance is the card's."""
    json: bool = False
    """Print the verdict and what it rests on as JSON on standard output."""


@dataclass(frozen=True, kw_only=True)
class Verify(CardRunFlags):
    """Check a card: run a random sample of its planned trials with an env and a policy that you
    name, and compare the outcomes trial by trial. The plan is the suite's tasks from the card's
    first seed on; trials that the card lacks, or calls errors, are drawn like all others. Settings
    that are plain values are the card's, unless you give them, and are told first; what a card
    names is shown, and never imported or opened. The verdict is the interval of the difference: it
    agrees within --within points, is refuted, or the sample is too small to tell; where everything
    is equal to the bit, that is said. Exits with 0 where it agrees, 1 where it is refuted or too
    little was run, 2 where the card or the command is refused."""

    card: Positional[Path]
    """The card, as hocket card writes it."""
    sample: Annotated[int, arg(metavar="N")] = 50
    """Trials to run; fewer where the card's plan has fewer."""
    fresh: Annotated[int, arg(metavar="N")] = 0
    """Also run N trials from starts after the card's, which whoever made it could not choose, and
    judge them against its rate."""
    sample_seed: Annotated[int | None, arg(metavar="SEED")] = None
    """Draws the sample and the fresh starts. By default one that nobody could know, which is
    told."""
    within: Annotated[float, arg(metavar="POINTS")] = 10.0
    """How many points of success may lie between card and check, for them to agree."""


@dataclass(frozen=True, kw_only=True)
class Reproduce(CardRunFlags):
    """Run what a card says once more, and judge the difference: it agrees within so many points,
    differs, or too few trials were run, and about how many more would tell. Env and policy are
    those that you name; settings that are plain values are the card's, unless you give them. Trials
    are paired where you run the card's, and compared as two rates where starts differ (--seed).
    What the two runs differ in (weights, simulator, renderer, control rate, replan, seeds,
    packages, hardware) is listed. With --claim in place of a card, a rate that somebody published
    is judged by what --protocol plans. Exits with 0 where it agrees, 1 where it differs, too little
    was run or not what the protocol says, 2 where the card or the command is refused."""

    card: Positional[Path | None] = None
    """The card, as hocket card writes it."""
    n: Annotated[int | None, arg(metavar="N")] = None
    """Run only the first N trials of the plan. With --claim: the trials behind the claim."""
    seed: Annotated[int | None, arg(metavar="SEED")] = None
    """Start from another seed than the card's."""
    within: Annotated[float, arg(metavar="POINTS")] = 5.0
    """How many points of success may lie between the two, for them to agree."""
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Keep the run in this folder; by default only the verdict is kept."""
    claim: Annotated[float | None, arg(metavar="PERCENT")] = None
    """A success rate that somebody published, instead of a card. It needs --n, the trials behind
    it, and --protocol, what it was measured by."""


def run(arguments: Sequence[str]) -> int:
    """Check; 1 where the card is refuted, or too little was run to tell."""
    parsed = parse_run(Verify, knobs_of(EvalConfig, only=_KNOBS), arguments, verb="verify")
    flags = parsed.flags
    from hocket import cli
    from hocket.results.card import Card
    from hocket.results.showing.progress import ProgressDisplay
    from hocket.runs.checks.card import check_card
    from hocket.runs.checks.card_plan import settings_told

    card = Card.load(flags.card)
    config = _config(card, parsed, arguments)
    with ProgressDisplay(age_s=machine.process_age_s()) as progress:
        found = check_card(
            card,
            config,
            sample=flags.sample,
            sample_seed=flags.sample_seed,
            fresh=flags.fresh,
            within=flags.within / 100,
            readers=[progress],
        )
    pairs = found.rerun.comparison
    document = {
        "verdict": found.standing,
        "sentence": found.sentence,
        "sampled": found.sampled,
        "equal_to_the_bit": found.equal,
        "sample_seed": found.seed,
        "sample": {"verdict": found.of_sample, **_gap_json(found.rerun.gap)},
        "fresh": {"verdict": found.of_fresh, **_gap_json(found.fresh)} if flags.fresh else None,
        "differences": [*settings_told(card, config), *found.differences],
        "comparison": None if pairs is None else pairs.to_json(),
    }
    tables = [] if pairs is None else [pairs.results().rich()]
    drawn = f"Drawn with --sample-seed {found.seed}."
    _show(document, found.differences, *tables, drawn, as_json=flags.json)
    return cli.OK if found.standing in ("equal", "agrees") else cli.FAILED


def reproduce(arguments: Sequence[str]) -> int:
    """Run again and judge; 1 where the rates differ, or too little was run to tell."""
    from hocket import cli

    is_claim = scan(arguments, "--claim") is not None or is_help(arguments)
    lacks_one = None in (scan(arguments, "--n"), scan(arguments, "--protocol"))
    if is_claim and lacks_one and not is_help(arguments):
        raise UsageError(
            "A --claim needs its --n, the trials behind it, and --protocol NAME, what it was "
            "measured by."
        )
    knobs = knobs_of(EvalConfig, only=(*_KNOBS, "replan", *(_OF_CLAIMS if is_claim else ())))
    parsed = parse_run(Reproduce, knobs, arguments, verb="reproduce")
    flags = parsed.flags
    from hocket.results.card import Card
    from hocket.results.showing.progress import ProgressDisplay
    from hocket.runs.checks import card as checking
    from hocket.runs.checks.card_plan import settings_told

    settings: list[str] = []
    if flags.claim is not None:
        claim = checking.PublishedRate(percent=flags.claim, n=flags.n or 0)
        config = _claimed(flags, parsed.config)
        run = functools.partial(checking.reproduce_claim, claim, config)
    elif flags.card is not None:
        card = Card.load(flags.card)
        config = _config(card, parsed, arguments)
        settings = settings_told(card, config)
        run = functools.partial(checking.reproduce, card, config, n=flags.n, seed=flags.seed)
    else:
        raise UsageError("Name a card: hocket reproduce card.json --env NAME --policy NAME.")
    with ProgressDisplay(age_s=machine.process_age_s()) as progress:
        found = run(within=flags.within / 100, out=flags.out, readers=[progress])
    protocol = {} if found.protocol is None else {"protocol": found.protocol.to_plain()}
    document = {
        "verdict": found.standing,
        "sentence": found.sentence,
        "paired": found.is_paired,
        **_gap_json(found.gap),
        "here": {"rate": found.ours.value, "n": found.ours.n},
        "claim" if protocol else "card": {"rate": found.theirs.value, "n": found.theirs.n},
        **protocol,
        "differences": [*settings, *found.differences],
    }
    _show(document, found.differences, as_json=flags.json)
    return cli.OK if found.confirms else cli.FAILED


def _claimed(flags: Reproduce, plain: Mapping[str, Any]) -> EvalConfig:
    """What is run to judge a claim, which is told first."""
    from hocket.runs.assembly import Assembly
    from hocket.runs.protocols import protocol_lines

    if flags.card is not None:
        raise UsageError("A card and a --claim are two things to reproduce: give one of them.")
    seed = {} if flags.seed is None else {"seed": flags.seed}
    given = {**plain, **seed, "perturb": flags.perturb, "record": "none", "video": "none"}
    config = EvalConfig.from_plain(given)
    for sentence in protocol_lines(config, Assembly(config).tasks()):
        sys.stderr.write(f"note: {sentence}\n")
    return config


def _config(card: Card, parsed: Parsed[Any], arguments: Sequence[str]) -> EvalConfig:
    """What is run: the user's flags, and what of the card's settings they leave open. It is told
    first, since it may make the trials easier than the suite's own."""
    from hocket.runs.checks.card_plan import config_for, settings_told

    words = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    given = {word[2:].replace(".no-", ".").replace("-", "_") for word in words}
    plain = {**parsed.config, "perturb": parsed.flags.perturb}
    config = config_for(card, EvalConfig.from_plain(plain), given)
    for line in settings_told(card, config):
        sys.stderr.write(f"note: {printable(line)}\n")
    return config


def _gap_json(gap: Gap | None) -> dict[str, float]:
    return {} if gap is None else gap.to_json()


def _show(document: Mapping[str, Any], notes: Sequence[str], *above: Any, as_json: bool) -> None:
    """The verdict as JSON, or in words below what it rests on."""
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    from rich.text import Text

    from hocket.results.terminal import Console

    console = Console()
    for each in above:
        console.print(each)
    for note in notes:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)
    console.print(Text(document["sentence"], style="bold"), soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class CardFlags:
    """Put a run on a card that others can read, pair against and check without its folder:
    card.json (every number with its interval, what it depends on, and one letter for each trial),
    card.md, a block for a model's page, and .eval_results/<suite>.yaml, as the Hub reads it in a
    model's repository. Others check it with: hocket verify card.json --env ... --policy ..."""

    folder: Positional[Path]
    """The run folder."""
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Where to write; the run folder itself by default."""
    dataset: Annotated[str | None, arg(metavar="OWNER/NAME")] = None
    """The benchmark's dataset on the Hub, for .eval_results; without it the suite's name stands
    there, which the Hub does not know."""


def card(arguments: Sequence[str]) -> int:
    """Write the card."""
    flags = parse(CardFlags, arguments, verb="card")
    from hocket import cli
    from hocket.runs.checks.card import write_card

    for path in write_card(flags.folder, flags.out or flags.folder, dataset=flags.dataset):
        sys.stdout.write(printable(str(path)) + "\n")
    if flags.dataset is None:
        sys.stderr.write(
            "note: .eval_results names the suite where the Hub wants a dataset's id: --dataset "
            "OWNER/NAME\n"
        )
    return cli.OK


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Run one trial of a run again, in this process (where a debugger works) unless the run had a
    runtime, and compare it step by step with what was recorded: actions, rewards, ends, states.
    Exits with 1 and the first difference where there is one."""

    folder: Positional[Path]
    """The run folder."""
    trial: Positional[Annotated[str, arg(metavar="TRIAL")]]
    """The trial, as reports name it (metaworld:mt10/reach-v3/3), or the end of its name
    (reach-v3/3)."""
    with_policy: bool = False
    """Ask the run's policy again, instead of executing the recorded actions."""
    runtime: Annotated[str | None, arg(metavar="NAME[:ARG]")] = None
    """Where the worker lives; by default where the run's workers did."""


def replay(arguments: Sequence[str]) -> int:
    """Verify a trial; 1 where it differs."""
    parsed = parse_with_runtime(Replay, arguments, verb="replay")
    flags = parsed.flags
    from hocket import cli
    from hocket.runs.checks.verify import verify

    verdict = verify(
        flags.folder,
        flags.trial,
        with_policy=flags.with_policy,
        adapt=lambda config: config.elsewhere(flags.runtime, parsed.config["runtime_config"]),
    )
    sys.stdout.write(printable(f"{verdict.trial.id}: {verdict}") + "\n")
    if verdict.difference is not None and flags.with_policy:
        from hocket.records.run_file import load_about

        level = load_about(flags.folder).get("exactness", "environment")
        if level != "bitwise":
            sys.stdout.write(
                f"The run's exactness is {level!r}: its policy may answer otherwise in a batch of "
                f"another size or at another time.\n"
            )
    return cli.OK if verdict.difference is None else cli.FAILED
