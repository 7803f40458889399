"""`hocket verify`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from hocket.cli.flags.parse import knobs_of, parse_run
from hocket.runs.config import EvalConfig
from hocket.system import machine

_KNOBS = (
    *("env", "policy", "lanes", "retries", "env_python", "policy_python", "policy_devices"),
    *("runtime", "start_timeout_s", "step_timeout_s", "infer_timeout_s", "worker_memory"),
)


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Check a card: run a random sample of its trials with an env and a policy that you name, and
    compare the outcomes trial by trial. The verdict is the interval of the difference: it agrees
    within --within points, is refuted, or the sample is too small to tell; where everything is
    equal to the bit, that is said. What a card names is shown and compared, and never imported.
    Replanning, step limit and start scheme are the card's. Exits with 0 where it agrees."""

    card: Positional[Path]
    """The card, as hocket card writes it."""
    sample: Annotated[int, arg(metavar="N")] = 50
    """Trials to run; fewer where the card has fewer."""
    sample_seed: Annotated[int, arg(metavar="SEED")] = 0
    """Draws the sample. Choose one that whoever made the card could not know."""
    within: Annotated[float, arg(metavar="POINTS")] = 10.0
    """How many points of success may lie between card and check, for them to agree."""
    json: bool = False
    """Print the verdict and the comparison as JSON on standard output."""


def run(arguments: Sequence[str]) -> int:
    """Check; 1 where the card is refuted, or too little was run to tell."""
    parsed = parse_run(Verify, knobs_of(EvalConfig, only=_KNOBS), arguments, verb="verify")
    flags = parsed.flags
    from hocket import cli
    from hocket.results.card import Card
    from hocket.results.showing.progress import ProgressDisplay
    from hocket.runs.checks.card import check_card, config_for

    card = Card.load(flags.card)
    config = config_for(card, EvalConfig.from_plain(parsed.config))
    with ProgressDisplay(age_s=machine.process_age_s()) as progress:
        found = check_card(
            card,
            config,
            sample=flags.sample,
            sample_seed=flags.sample_seed,
            within=flags.within / 100,
            readers=[progress],
        )
    if flags.json:
        document = {
            "verdict": found.standing,
            "sentence": found.sentence,
            "sampled": found.sampled,
            "equal_to_the_bit": found.equal,
            "differences": list(found.differences),
            "comparison": found.comparison.to_json(),
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        from rich.text import Text

        from hocket.results.terminal import Console

        console = Console()
        console.print(found.comparison.results().rich())
        for difference in found.differences:
            console.print(Text(f"note: {difference}", style="dim"), soft_wrap=True)
        console.print(Text(found.sentence, style="bold"), soft_wrap=True)
    return cli.OK if found.standing in ("equal", "agrees") else cli.FAILED
