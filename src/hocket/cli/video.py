"""`hocket video`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from hocket.cli.flags.parse import parse_with_runtime
from hocket.cli.flags.values import Names
from hocket.system.text import printable

if TYPE_CHECKING:
    from hocket.core.data import Episode
    from hocket.records.ledger.view import LedgerView
    from hocket.records.video.rerender import Rendered
    from hocket.runs.config import EvalConfig


@dataclass(frozen=True, kw_only=True)
class Video:
    """Film episodes of a run afterwards, from the simulator states that it kept. What is there
    already is not made again, so that an interrupted filming goes on where it was. Without a
    choice, whatever the run was to film and has not."""

    folder: Positional[Path]
    """The run folder."""
    trial: Positional[Annotated[tuple[str, ...], arg(metavar="TRIAL")]] = ()
    """These trials, as reports name them (metaworld:mt10/reach-v3/3), or the ends of the names."""
    failures: bool = False
    """Every episode that failed."""
    all: bool = False
    """Every episode."""
    first: Annotated[int | None, arg(metavar="N")] = None
    """The first N episodes of each task."""
    camera: Annotated[Names, arg(metavar="KEY[,KEY...]")] = ()
    """Only these cameras, by their observation keys (observation/wrist_image)."""
    overlay: bool = False
    """Burn the task, the step and the outcome into each frame."""
    video_quality: Literal["look", "full"] | None = None
    """look leaves out what costs much and tells people little, such as shadows; full is what
    policies see. The default is what the run was made with."""
    images: bool = False
    """Lossless pictures of every step, for datasets, instead of videos to look at."""
    again: bool = False
    """Film anew also what is there."""
    workers: Annotated[int | None, arg(metavar="N")] = None
    """Processes that film at the same time; as many as there are cores by default."""
    runtime: Annotated[str | None, arg(metavar="NAME[:ARG]")] = None
    """Where they live; by default where the run's workers did."""


def run(arguments: Sequence[str]) -> int:
    """Film; 1 where an episode could not be filmed."""
    parsed = parse_with_runtime(Video, arguments, verb="video")
    flags = parsed.flags
    from hocket import cli
    from hocket.records.ledger.view import LedgerView
    from hocket.runs.config import EvalConfig
    from hocket.runs.video import (
        RenderConfig,
        plan_render,
        refuse_unknown_cameras,
        render_videos,
    )
    from hocket.workers.sinks.encoder import Quality, require_encoder

    require_encoder(Quality(lossless=flags.images).codec)
    with LedgerView.open(flags.folder) as ledger:
        config = EvalConfig.from_plain(ledger.meta()["config"])
        config = config.elsewhere(flags.runtime, parsed.config["runtime_config"])
        refuse_unknown_cameras(flags.camera, [*ledger.specs().values()])
        chosen = _choose(flags, config, ledger)
        folder = ledger.folder
    wanted = RenderConfig(
        cameras=flags.camera,
        overlay=flags.overlay or config.video_overlay,
        quality=flags.video_quality or config.video_quality,
        images=flags.images,
        again=flags.again,
        workers=flags.workers,
    )
    plan = plan_render(folder, chosen, wanted)
    sys.stderr.write(
        f"{len(plan.jobs)} episodes to film, {len(plan.there)} there already, {len(plan.lost)} "
        f"without states.\n"
    )
    if plan.lost and not plan.jobs and not plan.there:
        sys.stderr.write(
            "No states are kept of these from which they could be shown: their env cannot be shown "
            "again, or the run kept none (--record none). Such envs are filmed while they run, and "
            "--video of `hocket eval` says which of these films are kept.\n"
        )
    filmed = render_videos(config, folder, plan.jobs, wanted, _Teller(len(plan.jobs)))
    return cli.FAILED if plan.lost or any(some.error for some in filmed) else cli.OK


def _choose(flags: Video, config: EvalConfig, ledger: LedgerView) -> list[Episode]:
    from hocket.records.video.selection import VideoSelection
    from hocket.runs.checks.verify import find_trial

    planned, ended = ledger.trials(), ledger.episodes()
    selections = []
    if flags.failures:
        selections.append(VideoSelection("failures"))
    if flags.all:
        selections.append(VideoSelection("all"))
    if flags.first is not None:
        selections.append(VideoSelection("first", flags.first))
    if not selections and not flags.trial:
        selections.append(
            VideoSelection("all") if flags.images else VideoSelection.parse(config.video)
        )
    named = {find_trial(planned, name) for name in flags.trial}
    chosen = {episode.trial for some in selections for episode in some.episodes(planned, ended)}
    return [episode for episode in ended if episode.trial in chosen | named]


class _Teller:
    """Prints a line for each episode."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._errors: set[str] = set()

    def __call__(self, filmed: Rendered) -> None:
        self._done += 1
        trial = filmed.job.episode.trial.id
        head = printable(f"[{self._done}/{self._total}] {trial}: ")
        if filmed.error is not None:
            # The same error of a thousand episodes needs no thousand tracebacks.
            first = filmed.error.partition("\n")[0]
            told = first if first in self._errors else filmed.error
            sys.stderr.write(f"{head}{printable(told)}\n")
            self._errors.add(first)
        elif not filmed.files:
            sys.stderr.write(f"{head}the env has no camera\n")
        else:
            sys.stdout.write(f"{head}{' '.join(filmed.files)}\n")
            sys.stdout.flush()
