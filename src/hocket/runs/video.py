"""The videos of a run: which are wanted, which are there, and how the missing ones are rendered."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from hocket.core.data import Episode, Outcome, Ref, Trial
from hocket.core.events import EpisodeFilmed, Event, Noted
from hocket.core.plugins import did_you_mean
from hocket.core.specs import EnvSpec
from hocket.errors import MissingExtraError, UnknownNameError
from hocket.records.evidence import Evidence
from hocket.records.folder import RunFolder
from hocket.records.ledger.ledger import Ledger
from hocket.records.step_rows import KeptStates, StateRows, StepRows
from hocket.records.video.films import VideoPlan
from hocket.records.video.rerender import Rendered, RenderJob, VideoWorkers
from hocket.records.video.selection import VideoSelection
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.system import machine
from hocket.system.durable import TEMPORARY
from hocket.system.interpreter import examine_python
from hocket.workers.fleet import Borrowed, Fleet
from hocket.workers.sinks.encoder import Quality, require_encoder
from hocket.workers.sinks.states import FILE, load_states
from hocket.workers.sinks.video import file_name, rerender_record, videos_in

_DEFAULT_VIDEO = EvalConfig.__dataclass_fields__["video"].default


def refuse_unknown_cameras(wanted: Collection[str], specs: Collection[EnvSpec]) -> None:
    """Raise where no env of a run has a camera that was named; of rows it is not known which there
    are."""
    known = {camera for spec in specs for camera in spec.cameras}
    if not specs or any("batched" in spec.abilities for spec in specs):
        return
    for key in wanted:
        if key not in known:
            raise UnknownNameError(
                f"No env of the run has a camera {key!r}.{did_you_mean(key, known)} They have: "
                f"{', '.join(sorted(known)) or 'none'}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderConfig:
    """What is rendered of the episodes that were chosen."""

    cameras: tuple[str, ...] = ()
    """Keys of the observation; none means all that the env has."""
    overlay: bool = False
    quality: str = "look"
    """How it is rendered: `look`, for people, or `full`, as policies are given it; pictures of
    every step are always `full`."""
    images: bool = False
    """Lossless pictures of every step, as datasets need them, instead of a video to look at."""
    again: bool = False
    """Render also where there is a video already, which is replaced."""
    workers: int | None = None
    """How many workers render at once; None takes one for each core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderPlan:
    """The chosen episodes, by what is to be done for each."""

    jobs: tuple[RenderJob, ...]
    there: tuple[Episode, ...]
    """Those that have what was asked for."""
    lost: tuple[Episode, ...]
    """Those that cannot be shown again: their env cannot be, or nothing was recorded."""


def sinks_of(config: EvalConfig, assembly: Assembly) -> tuple[Ref, ...]:
    """The sinks that keep what an evaluation's configuration asks for."""
    keeps_numbers = config.record != "none"
    has_video = VideoSelection.parse(config.video).kind != "none"
    sinks = []
    if keeps_numbers:
        # Where everything is to be kept, what cannot be shown again is observed while it runs.
        every = not assembly.is_batched or assembly.has_rows_alone
        settings = {"every_step": every, "largest": None} if _keeps_pictures(config) else {}
        sinks.append(Ref(name="steps", config=settings))
    if keeps_numbers or has_video:
        sinks.append(Ref(name="states", config={"only_with_video": not keeps_numbers}))
    if has_video:
        sinks.append(_video_sink(RenderConfig(overlay=config.video_overlay)))
    if _keeps_pictures(config):
        sinks.append(_video_sink(RenderConfig(images=True)))
    return tuple(sinks)


def _keeps_pictures(config: EvalConfig) -> bool:
    """True if the pictures of envs that cannot be shown again are kept while they run."""
    return config.record in ("data", "full")


def recorded_by(config: EvalConfig, trials: Sequence[Trial], ledger: Ledger) -> VideoPlan:
    """What says what the sinks record of each attempt; what they leave becomes rows."""
    for recorder in (StepRows, StateRows):
        ledger.attach(recorder(ledger.folder.root))
    return VideoPlan(
        VideoSelection.parse(config.video),
        trials,
        images=_keeps_pictures(config),
        ledger=ledger,
        room_mb=config.video_mb,
        errors=config.keep_errors,
    )


def without_impossible_video(config: EvalConfig, tell: Callable[[Event], None]) -> EvalConfig:
    """The configuration, without the videos that nobody asked for by name where the envs'
    interpreter cannot make any: it needs nothing of hocket's installed."""
    has_video = config.record == "full" or VideoSelection.parse(config.video).kind != "none"
    if not has_video or config.env_python is None or not examine_python(config.env_python, "av"):
        return config
    advice = f"{config.env_python} -m pip install 'av>=14'"
    if config.record == "full" or config.video != _DEFAULT_VIDEO:
        raise MissingExtraError(
            f"Video needs the package 'av', which is not installed in {config.env_python}. Run: "
            f"{advice}. To go on without: --video none, and no --record full."
        )
    tell(Noted(text=f"No videos: {config.env_python} lacks the package 'av' ({advice})."))
    return replace(config, video="none")


def require_encoders(config: EvalConfig) -> None:
    """Raise MissingExtraError where a video is wanted that could not be made here."""
    if VideoSelection.parse(config.video).kind != "none":
        require_encoder(Quality().codec)
    if config.record == "full":
        require_encoder(Quality(lossless=True).codec)


def plan_render(folder: RunFolder, episodes: Iterable[Episode], config: RenderConfig) -> RenderPlan:
    """Sort episodes into those to render, those that have their video, and those that cannot be
    rendered."""
    jobs: list[RenderJob] = []
    there: list[Episode] = []
    lost: list[Episode] = []
    kept = KeptStates(folder)
    for episode in episodes:
        if not config.again and _is_there(folder, episode, config):
            there.append(episode)
        elif episode.outcome is Outcome.ERROR or not kept.can_show(episode):
            lost.append(episode)
        else:
            quality = "full" if config.images else config.quality
            record = rerender_record(episode, images=config.images, quality=quality)
            states = functools.partial(kept.load, episode)
            jobs.append(RenderJob(episode=episode, states=states, record=record))
    return RenderPlan(jobs=tuple(jobs), there=tuple(there), lost=tuple(lost))


def render_videos(
    run: EvalConfig,
    folder: RunFolder,
    jobs: Sequence[RenderJob],
    config: RenderConfig,
    on_rendered: Callable[[Rendered], None] = lambda _: None,
) -> list[Rendered]:
    """Render these jobs, in workers that are started for it."""
    sinks = (_video_sink(config),)
    return rerender_episodes(
        run, Assembly(run), folder, jobs, sinks, on_rendered, workers=config.workers
    )


def rerender_episodes(
    run: EvalConfig,
    assembly: Assembly,
    folder: RunFolder,
    jobs: Sequence[RenderJob],
    sinks: Sequence[Ref],
    on_rendered: Callable[[Rendered], None],
    *,
    workers: int | None,
    warm: Sequence[Borrowed] = (),
) -> list[Rendered]:
    """Feed sinks with episodes of a run as rendered from their states, in workers with the run's
    own envs. What the sinks seal lies in `folder`. `workers` None takes one for each core, first
    those that are `warm`, which have these sinks."""
    if not jobs:
        return []
    spec = replace(assembly.worker(), renders=True, sinks=tuple(sinks), folder=str(folder.root))
    runtime = functools.partial(assembly.runtime, apart=True)
    return VideoWorkers(
        runtime,
        spec,
        jobs,
        on_rendered,
        workers=workers or machine.cores(),
        warm=warm,
        start_timeout_s=run.start_timeout_s,
        frame_timeout_s=run.step_timeout_s,
    ).run()


def wanted_videos(
    run: EvalConfig, planned: Sequence[Trial], ended: Sequence[Episode]
) -> list[tuple[RenderConfig, list[Episode]]]:
    """What a run's configuration asks to be filmed, and how."""
    look = RenderConfig(overlay=run.video_overlay, quality=run.video_quality)
    wanted = [(look, VideoSelection.parse(run.video).episodes(planned, ended))]
    if run.record == "full":
        wanted.append((RenderConfig(images=True), VideoSelection("all").episodes(planned, ended)))
    return wanted


def error_jobs(run: EvalConfig, folder: RunFolder, evidence: Sequence[Evidence]) -> list[RenderJob]:
    """How the attempts that were lost are filmed up to their end, where their states are kept and
    videos are wanted at all."""
    if VideoSelection.parse(run.video).kind == "none":
        return []
    jobs, kept = [], KeptStates(folder)
    for each in evidence:
        episode = each.episode(folder)
        place = folder.attempt(each.trial, each.attempt)
        if episode is not None and kept.can_show(episode) and not videos_in(place):
            record = rerender_record(episode, quality=run.video_quality)
            record["folder"] = str(folder.root)
            states = functools.partial(load_states, place / FILE)
            jobs.append(RenderJob(episode=episode, states=states, record=record))
    return jobs


def render_wanted(
    run: EvalConfig,
    assembly: Assembly,
    folder: RunFolder,
    planned: Sequence[Trial],
    ended: Sequence[Episode],
    evidence: Sequence[Evidence],
    tell: Callable[[Event], None],
    fleet: Fleet | None = None,
) -> int:
    """Render what a run's configuration asks for and is not there yet, in workers of its `fleet`
    where they can be had; gives the number of episodes that were filmed. What cannot be rendered is
    told; a run is no worse for it. Simulators that only have rows get no video."""
    if assembly.has_rows_alone:
        return 0
    jobs = [
        replace(job, record={**job.record, "folder": str(folder.root)})
        for config, chosen in wanted_videos(run, planned, ended)
        for job in plan_render(folder, chosen, config).jobs
    ]
    jobs += error_jobs(run, folder, evidence)
    if not jobs:
        return 0
    done = failed = 0
    tell(EpisodeFilmed(trial=None, error=None, done=0, total=len(jobs)))

    def on_rendered(rendered: Rendered) -> None:
        nonlocal done, failed
        done += 1
        trial = rendered.job.episode.trial
        tell(EpisodeFilmed(trial=trial, error=rendered.error, done=done, total=len(jobs)))
        if rendered.error is not None:
            failed += 1
            first = rendered.error.partition("\n")[0]
            tell(Noted(text=f"An episode could not be filmed: {first}"))

    cores = machine.cores()
    try:
        with contextlib.ExitStack() as stack:
            warm = [] if fleet is None else stack.enter_context(fleet.borrowed(cores))
            sinks = sinks_of(run, assembly)
            rerender_episodes(
                run, assembly, folder, jobs, sinks, on_rendered, workers=cores, warm=warm
            )
    except KeyboardInterrupt:
        text = (
            f"Filming was interrupted after {done} of {len(jobs)} videos; nothing else is missing. "
            f"`hocket video {folder.root}` makes the others."
        )
        tell(Noted(text=text))
    return done - failed


def _video_sink(config: RenderConfig) -> Ref:
    settings = {
        "cameras": list(config.cameras),
        "overlay": config.overlay,
        "lossless": config.images,
    }
    return Ref(name="video", config=settings)


def _is_there(folder: RunFolder, episode: Episode, config: RenderConfig) -> bool:
    attempt = folder.attempt(episode.trial, episode.attempt)
    if any(attempt.glob(f".*{TEMPORARY}")):
        return False  # interrupted, perhaps between two cameras
    if config.cameras:
        names = [file_name(camera, lossless=config.images) for camera in config.cameras]
        return all((attempt / name).is_file() for name in names)
    return bool(videos_in(attempt, lossless=config.images))
