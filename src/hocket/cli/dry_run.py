"""What `hocket eval --dry-run` prints."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.cli.values import format_bytes
from hocket.core import machine
from hocket.core.plugins import share_settings
from hocket.runs.evaluation import EvalConfig, plan_trials

if TYPE_CHECKING:
    from rich.console import RenderableType


def describe(config: EvalConfig, out: Path) -> RenderableType:
    """The planned trials per task, the lanes, and each adapter's settings."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    trials = plan_trials(config)
    table = Table(title=f"{len(trials)} trials", title_justify="left", box=None)
    table.add_column("suite")
    table.add_column("task")
    table.add_column("trials", justify="right")
    table.add_column("seeds", justify="right")
    seeds: dict[tuple[str, str], list[int]] = {}
    for trial in trials:
        seeds.setdefault((trial.suite, trial.task), []).append(trial.seed)
    counts = Counter((trial.suite, trial.task) for trial in trials)
    for (suite, task), count in counts.items():
        known = seeds[suite, task]
        span = f"{min(known)}" if min(known) == max(known) else f"{min(known)}-{max(known)}"
        table.add_row(suite, task, str(count), span)
    cores, memory = machine.cores(), format_bytes(machine.memory_bytes())
    lines = [
        f"lanes: {config.lanes} ({cores} cores, {memory} memory here)",
        f"policy: {config.policy} {dict(config.policy_config) or ''}".rstrip(),
        *(
            f"env: {name} {settings or ''}".rstrip()
            for name, settings in share_settings("envs", config.env, config.env_config).items()
        ),
        f"run folder: {out} (not made)",
    ]
    return Group(table, *(Text(line) for line in lines))
