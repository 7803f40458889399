"""The videos of a run: which are wanted, which are there, and how the missing ones are made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hocket.core import machine, plugins
from hocket.core.data import Episode, Outcome, Ref, Trial
from hocket.core.events import ChunksExecuted, EpisodeFilmed, Event, Noted, SpecLearned
from hocket.records.folder import TEMPORARY, RunFolder
from hocket.records.states import FILE
from hocket.records.video.encoder import Quality, require_encoder
from hocket.records.video.rerender import Filmed, Job, RenderingConfig, film
from hocket.records.video.selection import Orders, Wish, is_filmed_later, restored
from hocket.records.video.sink import file_name, videos_in
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmConfig:
    """What is filmed of the episodes that were chosen."""

    cameras: tuple[str, ...] = ()
    """Keys of the observation; none means all that the env has."""
    overlay: bool = False
    images: bool = False
    """Lossless pictures of every step, as datasets need them, instead of a video to look at."""
    again: bool = False
    """Also where there is a video already, which is replaced."""
    workers: int | None = None
    """None takes as many as there are cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shoot:
    """Chosen episodes, by what is to be done for each."""

    jobs: tuple[Job, ...]
    there: tuple[Episode, ...]
    """Have what was asked for."""
    lost: tuple[Episode, ...]
    """No states of them are kept: their env cannot be shown again, or it was not recorded."""


def sinks_of(config: EvalConfig) -> tuple[Ref, ...]:
    """The sinks that keep what an evaluation's configuration asks for."""
    keeps_numbers, films = config.record != "none", Wish.parse(config.video).kind != "none"
    sinks = []
    if keeps_numbers:
        sinks.append(Ref(name="steps", config={"snapshots": False}))
    if keeps_numbers or films:
        sinks.append(Ref(name="states", config={"only_filmed": not keeps_numbers}))
    if films:
        sinks.append(_video_sink(FilmConfig(overlay=config.video_overlay)))
    if config.record == "full":
        sinks.append(_video_sink(FilmConfig(images=True)))
    return tuple(sinks)


def orders_of(
    config: EvalConfig, planned: Sequence[Trial]
) -> Callable[[Trial, int], Mapping[str, Any]]:
    """What is asked of the sinks in each attempt."""
    return Orders(Wish.parse(config.video), planned, images=config.record == "full")


def require_encoders(config: EvalConfig) -> None:
    """Refuse to begin where the wanted video could not be made."""
    if Wish.parse(config.video).kind != "none":
        require_encoder(Quality().codec)
    if config.record == "full":
        require_encoder(Quality(lossless=True).codec)


def plan_shoot(folder: RunFolder, episodes: Iterable[Episode], config: FilmConfig) -> Shoot:
    """Sort episodes into those to film, those that are there, and those that cannot be filmed."""
    jobs: list[Job] = []
    there: list[Episode] = []
    lost: list[Episode] = []
    for episode in episodes:
        states = folder.attempt(episode.trial, episode.attempt) / FILE
        if not config.again and _is_there(folder, episode, config):
            there.append(episode)
        elif episode.outcome is Outcome.ERROR or not states.is_file():
            lost.append(episode)
        else:
            record = restored(episode, images=config.images)
            jobs.append(Job(episode=episode, states=states, record=record))
    return Shoot(jobs=tuple(jobs), there=tuple(there), lost=tuple(lost))


def shoot(
    run: EvalConfig,
    folder: RunFolder,
    jobs: Collection[Job],
    config: FilmConfig,
    on_filmed: Callable[[Filmed], None] = lambda _: None,
) -> list[Filmed]:
    """Film episodes of a run, in workers with the run's own envs."""
    if not jobs:
        return []
    assembly = Assembly(run)
    spec = replace(assembly.worker(), sinks=(_video_sink(config),), folder=str(folder.root))
    runtime = assembly.runtime(apart=True)
    workers = RenderingConfig(
        workers=config.workers or machine.cores(), frame_timeout_s=run.step_timeout_s
    )
    return film(runtime, spec, list(jobs), workers, on_filmed)


def film_wanted(
    run: EvalConfig,
    folder: RunFolder,
    planned: Sequence[Trial],
    ended: Sequence[Episode],
    tell: Callable[[Event], None],
) -> None:
    """Film what a run's configuration asks for and is not there yet. What cannot be filmed is
    told; a run is no worse for it. Of simulators that only have rows, nobody expects a film."""
    if any(_has_rows_alone(name) for name in run.env):
        return
    wanted: list[tuple[FilmConfig, list[Episode]]] = [
        (
            FilmConfig(overlay=run.video_overlay),
            Wish.parse(run.video).episodes(planned, ended),
        )
    ]
    if run.record == "full":
        wanted.append((FilmConfig(images=True), Wish("all").episodes(planned, ended)))
    plans = [(config, plan_shoot(folder, chosen, config)) for config, chosen in wanted]
    total, done = sum(len(plan.jobs) for _, plan in plans), 0

    def on_filmed(filmed: Filmed) -> None:
        nonlocal done
        done += 1
        trial = filmed.job.episode.trial
        tell(EpisodeFilmed(trial=trial, error=filmed.error, done=done, total=total))
        if filmed.error is not None:
            first = filmed.error.partition("\n")[0]
            tell(Noted(text=f"An episode could not be filmed: {first}"))

    try:
        for config, plan in plans:
            shoot(run, folder, plan.jobs, config, on_filmed)
    except KeyboardInterrupt:
        text = f"Filming was interrupted; `hocket video {folder.root}` makes what is missing."
        tell(Noted(text=text))


def _has_rows_alone(env: str) -> bool:
    """Whether no single env can be made of a batched simulator, to show states in."""
    build = plugins.find("envs", env).build
    return hasattr(build, "make_rows") and not hasattr(build, "make")


def _video_sink(config: FilmConfig) -> Ref:
    settings = {
        "cameras": list(config.cameras),
        "overlay": config.overlay,
        "lossless": config.images,
    }
    return Ref(name="video", config=settings)


def _is_there(folder: RunFolder, episode: Episode, config: FilmConfig) -> bool:
    place = folder.attempt(episode.trial, episode.attempt)
    if any(place.glob(f".*{TEMPORARY}")):
        return False  # interrupted, perhaps between two cameras
    if config.cameras:
        names = [file_name(camera, lossless=config.images) for camera in config.cameras]
        return all((place / name).is_file() for name in names)
    return bool(videos_in(place, lossless=config.images))


class InLineCost:
    """A reader that adds up what filming in line costs, where envs cannot be shown again."""

    def __init__(self, is_filmed: Callable[[Trial, int], Mapping[str, Any]]) -> None:
        self._is_filmed = is_filmed
        self._in_line: dict[tuple[str, str], bool] = {}
        """Tasks filmed in line, and whether they are observed at every step anyway."""
        self._filmed: set[str] = set()
        self._seconds = 0.0

    def on(self, event: Event) -> None:
        if isinstance(event, SpecLearned):
            spec = event.spec
            if spec.cameras and not is_filmed_later(spec.abilities):
                self._in_line[event.suite, spec.task.name] = "deferred" not in spec.abilities
        elif isinstance(event, ChunksExecuted) and self._in_line:
            rows = zip(event.trials, event.attempts, event.observed, strict=True)
            for trial, attempt, seconds in rows:
                is_in_line = (trial.suite, trial.task) in self._in_line
                if is_in_line and self._is_filmed(trial, attempt):
                    self._filmed.add(trial.id)
                    self._seconds += seconds

    def close(self) -> None:
        """Nothing is held."""

    @property
    def note(self) -> str | None:
        """For the user, where anything was filmed in line."""
        if not self._filmed:
            return None
        tasks = ", ".join(sorted(task for _, task in self._in_line))
        cost = f"observing them took the workers {self._seconds:.1f} s"
        if all(self._in_line.values()):
            cost += ", beside what their steps render anyway"
        return (
            f"{len(self._filmed)} episodes were filmed while they ran, since {tasks} cannot be "
            f"shown again from stored states; {cost}."
        )
