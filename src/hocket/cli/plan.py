"""`hocket plan`."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from hocket.cli.flags.parse import parse
from hocket.cli.flags.values import Counts, Latencies
from hocket.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hocket.engine.scheduling.estimates import Latency
    from hocket.engine.scheduling.model import ChunkWork, PlanRow


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Predict what a number of lanes gives: throughput, batch size, and what limits it. The model
    is the scheduler's own. Give numbers, or --from a run that measured them."""

    lanes: Counts = (1, 2, 4, 8, 16, 32, 64, 128)
    """Numbers of lanes to compare: 1:128 doubles from 1 to 128, 4,8,12 is these."""
    cores: Annotated[int | None, arg(metavar="C")] = None
    """Cores for the simulators; the default is what this process may use."""
    execute_s: Annotated[float | None, arg(metavar="SECONDS")] = None
    """Seconds that one simulator takes for one chunk, its observation included."""
    latency: Latencies = None
    """Milliseconds that the policy takes for a batch of B: a line, 75+8.5B, or points,
    1=75,8=116,32=340."""
    actions: Annotated[float | None, arg(metavar="K")] = None
    """Actions executed of each chunk, to tell env steps from chunks (16 by default)."""
    delay: Annotated[int, arg(metavar="D")] = 0
    """Control steps that the world goes on while the policy thinks (hocket eval --delay): lanes
    execute that many of the K actions meanwhile."""
    slowed: Annotated[float, arg(metavar="SHARE")] = 0.0
    """Share by which each lane that executes makes an inference longer, where lanes render on the
    policy's GPU."""
    concurrency: Annotated[int, arg(metavar="K")] = 1
    """Batches that the policy infers at once: replicas, or a pool of servers."""
    max_batch: Annotated[int, arg(metavar="B")] = 64
    """Largest batch that the policy takes."""
    measured: Annotated[Path | None, arg(name="from", metavar="RUN")] = None
    """Take what is not given from this run folder's report."""


def run(arguments: Sequence[str]) -> int:
    """Print the plan."""
    flags = parse(Plan, arguments, verb="plan")
    from hocket.engine.scheduling.estimates import Latency
    from hocket.engine.scheduling.model import ChunkWork, plan
    from hocket.results.terminal import Console
    from hocket.system import machine

    if flags.measured is not None:
        flags = _measured(flags, flags.measured)
    if flags.execute_s is None or flags.latency is None:
        missing = "--execute-s" if flags.execute_s is None else "--latency"
        raise UsageError(f"{missing} is needed, or --from a run that measured it.")
    _refuse_nonsense(flags)
    actions = flags.actions or 16
    work = ChunkWork(
        cores=machine.cores() if flags.cores is None else flags.cores,
        execute_s=flags.execute_s,
        concurrency=flags.concurrency,
        max_batch=flags.max_batch,
        overlap=flags.delay / actions,
        slowed=flags.slowed,
    )
    latency = Latency(flags.latency)
    rows = plan(flags.lanes, work, latency, actions_per_chunk=actions)
    Console().print(_table(rows, _useful_cores(flags.lanes[-1], work, latency)))
    if flags.delay:
        paused = plan(
            flags.lanes, dataclasses.replace(work, overlap=0.0), latency, actions_per_chunk=actions
        )
        # Twice is what two sides gain at most that took turns and now work at the same time.
        gains = [
            min(2.0, row.chunks_per_s / other.chunks_per_s)
            for row, other in zip(rows, paused, strict=True)
        ]
        at = max(range(len(gains)), key=gains.__getitem__)
        Console().print(
            f"With a delay of {flags.delay} steps lanes go on while the policy works: up to "
            f"{gains[at]:.2f} times what they give when the world waits ({rows[at].lanes} lanes).",
            highlight=False,
        )
    return 0


def _refuse_nonsense(flags: Plan) -> None:
    for name in ("cores", "execute_s", "actions", "concurrency", "max_batch"):
        value = getattr(flags, name)
        if value is not None and value <= 0:
            raise UsageError(f"--{name.replace('_', '-')} is {value:g}; it must be above 0.")
    if flags.slowed < 0:
        raise UsageError(f"--slowed is {flags.slowed:g}; it cannot be below 0.")
    if not 0 <= flags.delay <= (flags.actions or 16):
        raise UsageError(
            f"--delay is {flags.delay}; it must lie between 0 and --actions, those of a chunk."
        )


def _useful_cores(lanes: int, work: ChunkWork, latency: Latency) -> int:
    """The cores that this number of lanes can use, before something else limits them."""
    from hocket.engine.scheduling.model import plan

    def rate(cores: int) -> float:
        with_cores = dataclasses.replace(work, cores=cores)
        return plan((lanes,), with_cores, latency, actions_per_chunk=1)[0].chunks_per_s

    candidates = range(work.cores, max(work.cores, lanes) + 1)
    last = len(candidates) - 1
    enough = 0.98 * rate(candidates[last])
    return candidates[bisect.bisect_left(candidates, enough, hi=last, key=rate)]


def _measured(flags: Plan, folder: Path) -> Plan:
    """The flags, with what was not given taken from a run's report."""
    from hocket.results.report import Report

    speed = Report.load(folder).throughput
    if not speed.chunks or not speed.batches or not speed.worked_s or not speed.policy_busy:
        raise UsageError(f"The report of {folder} has no throughput to plan from.")
    execute_s = speed.worked_s / speed.chunks
    infer_s = speed.policy_busy * speed.wall_s * flags.concurrency / speed.batches
    batch = max(1, round(speed.chunks / speed.batches))
    return dataclasses.replace(
        flags,
        cores=flags.cores or speed.cores,
        execute_s=flags.execute_s or execute_s,
        latency=flags.latency or {batch: infer_s},
        actions=flags.actions or speed.env_steps / speed.chunks,
    )


def _table(rows: Sequence[PlanRow], useful_cores: int) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("lanes", "batch", "chunks/s", "env steps/s", "cores busy", "policy busy"):
        table.add_column(name, justify="right")
    table.add_column("limit")
    for row in rows:
        table.add_row(
            str(row.lanes),
            str(row.batch),
            f"{row.chunks_per_s:,.1f}",
            f"{row.steps_per_s:,.0f}",
            f"{100 * row.cores_busy:.0f} %",
            f"{100 * row.policy_busy:.0f} %",
            row.limit,
        )
    return Group(table, Text(_advice(rows, useful_cores)))


def _advice(rows: Sequence[PlanRow], useful_cores: int) -> str:
    """One sentence: where more lanes stop helping, and what then would, up to where."""
    best = max(row.chunks_per_s for row in rows)
    enough = next(row for row in rows if row.chunks_per_s >= 0.98 * best)
    if enough.limit == "latency":
        return "More lanes still help: neither the cores nor the policy are busy all the time."
    cure = {
        "cores": f"more cores help {rows[-1].lanes} lanes, up to {useful_cores}",
        "policy": "a faster policy, or replicas of it, help",
    }[enough.limit]
    limits = "limits" if enough.limit == "policy" else "limit"
    return f"Beyond {enough.lanes} lanes nothing is gained: the {enough.limit} {limits}; {cure}."
