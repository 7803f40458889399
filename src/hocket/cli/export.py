"""`hocket export`, `hocket collect` and `hocket push`: runs as data for other tools."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from hocket.cli.flags.parse import parse
from hocket.cli.flags.values import Names
from hocket.errors import UsageError
from hocket.system.text import printable

if TYPE_CHECKING:
    from rich.progress import TaskID

    from hocket.adapters.hub import Repository
    from hocket.runs.demonstrations.chosen import Choice


from typing import TYPE_CHECKING, Literal

from hocket.cli.flags.parse import FileFlags, knobs_of, parse_run
from hocket.cli.flags.plan import RunFlags, RunPlan, following, machines_of
from hocket.cli.watch import shown
from hocket.core.contracts.recorder import Followed
from hocket.runs.config import EvalConfig

if TYPE_CHECKING:
    from hocket.core.contracts.recorder import Reader


@dataclass(frozen=True, kw_only=True)
class Export:
    """A run in another tool's format. Pictures and states that the run did not keep of every step
    are made again from its simulator states, where the env can be shown again."""

    folder: Positional[Path]
    """The run folder."""
    to: Annotated[str, arg(metavar="lerobot|hdf5|rerun|eval_info|perfetto")]
    """LeRobotDataset v3 (a folder); robomimic's HDF5; Rerun's .rrd; LeRobot's eval_info.json; a
    timeline for ui.perfetto.dev (.json, or .json.gz)."""
    out: Annotated[Path, arg(metavar="PATH")]
    """The file or folder to write; nothing is ever written over."""
    push: Annotated[str, arg(metavar="USER/REPO")] = ""
    """LeRobotDataset: then upload it to this dataset of Hugging Face's hub, which is made where it
    is not there (HF_ENDPOINT, and your token: hf auth login)."""
    successes: bool = False
    """Only episodes that succeeded."""
    outcome: Annotated[Names, arg(metavar="NAME[,NAME...]")] = ()
    """Only episodes of these outcomes: success, failure, finished (error, in a timeline)."""
    task: Annotated[Names, arg(metavar="NAME[,NAME...]")] = ()
    """Only episodes of these tasks."""
    no_images: bool = False
    """Leave the cameras out."""
    camera: Annotated[Names, arg(metavar="KEY[,KEY...]")] = ()
    """Only these cameras, by their observation keys (observation/wrist_image)."""
    fps: Annotated[float | None, arg(metavar="N")] = None
    """Steps per second, where the env does not say, or tasks differ."""
    crf: int = 20
    """Quality of LeRobot's videos: smaller is better and larger."""
    next_obs: bool = False
    """HDF5: also what was observed after each action."""
    valid: float = 0.1
    """HDF5: the part of each task's episodes in the mask `valid`; the rest is in `train`."""
    workers: Annotated[int | None, arg(metavar="N")] = None
    """Processes that show episodes again; as many as there are cores by default."""


def run(arguments: Sequence[str]) -> int:
    """Export."""
    flags = parse(Export, arguments, verb="export")
    from hocket import cli
    from hocket.exports import export_run
    from hocket.runs.demonstrations.chosen import Choice, ExportConfig

    outcomes = (*flags.outcome, *(["success"] if flags.successes else []))
    config = ExportConfig(
        choice=Choice(outcomes=tuple(dict.fromkeys(outcomes)), tasks=flags.task),
        images=not flags.no_images,
        cameras=flags.camera,
        fps=flags.fps,
        crf=flags.crf,
        next_obs=flags.next_obs,
        valid=flags.valid,
        workers=flags.workers,
    )
    dataset = _dataset(flags, config.choice)
    with contextlib.closing(Teller()) as teller:
        done = export_run(flags.folder, flags.to, flags.out, config, teller)
    sys.stderr.write("".join(f"note: {printable(text)}\n" for text in teller.notes))
    sys.stdout.write(f"{flags.out}: {len(done.episodes)} episodes as {flags.to}\n")
    if dataset is not None:
        from hocket.runs.demonstrations.lerobot_names import VERSION

        sys.stderr.write(f"pushing {flags.out} to {flags.push}\n")
        sys.stdout.write(f"{dataset.push(flags.out, tag=VERSION)}: pushed\n")
    return cli.OK


def _dataset(flags: Export, choice: Choice) -> Repository | None:
    """Where the export is pushed to, once the hub has it."""
    if not flags.push:
        return None
    from hocket.adapters.hub import Repository
    from hocket.exports import refuse_existing
    from hocket.runs.demonstrations.chosen import open_chosen

    if flags.to != "lerobot":
        raise UsageError(f"--push is for --to lerobot, and not for {flags.to}.")
    refuse_existing(flags.out.absolute())
    open_chosen(flags.folder, choice)
    return Repository(flags.push)


@dataclass(frozen=True, kw_only=True)
class PushRun:
    """Hand a run on: its card, page and films go to a repository of Hugging Face's hub, into
    evals/RUN, and its scores to .eval_results, which the page of the model shows (HF_ENDPOINT, and
    your token: hf auth login)."""

    folder: Positional[Path]
    """The run folder."""
    to: Annotated[str, arg(metavar="hf:USER/NAME")]
    """The model's repository; hf:datasets/USER/NAME is a dataset's, which has no scores. It is made
    where it is not there."""
    dataset: Annotated[str | None, arg(metavar="OWNER/NAME")] = None
    """The benchmark's dataset on the hub, in whose list the scores then stand."""
    no_films: bool = False
    """Leave the films out."""
    request: bool = False
    """Open a pull request, as for a model that is not yours."""


def push(arguments: Sequence[str]) -> int:
    """Push."""
    flags = parse(PushRun, arguments, verb="push")
    from hocket import cli
    from hocket.exports.push import push_run, repository_of

    repository = repository_of(flags.to)
    with contextlib.closing(Teller()) as teller:
        place = push_run(
            flags.folder,
            repository,
            teller,
            films=not flags.no_films,
            dataset=flags.dataset,
            as_request=flags.request,
        )
    sys.stderr.write("".join(f"note: {printable(text)}\n" for text in teller.notes))
    sys.stdout.write(f"{place}\n")
    return cli.OK


class Teller:
    """A bar on standard error for each part of the work; notes are kept until the end."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        from hocket.results.terminal import Console

        console = Console(stderr=True)
        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.notes: list[str] = []
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def close(self) -> None:
        self._progress.stop()

    def stage(self, name: str, total: int) -> None:
        self._tasks[name] = self._progress.add_task(name, total=total)
        if self._progress.disable:
            sys.stderr.write(f"{name}: {total} episodes\n")

    def advance(self, name: str) -> None:
        self._progress.advance(self._tasks[name])

    def note(self, text: str) -> None:
        self.notes.append(text)


KNOBS = (
    "env",
    "policy",
    "seed",
    "episodes",
    "lanes",
    "replan",
    "max_steps",
    "record",
    "env_python",
    "policy_python",
    "runtime",
    "start_timeout_s",
)


@dataclass(frozen=True, kw_only=True)
class Collect(RunFlags, FileFlags):
    """Collect a fixed number of episodes of each task straight to a dataset: successes alone,
    unless told otherwise. A collection that was interrupted goes on with the same command."""

    out: Positional[Path]
    """The dataset's folder (or file), which must not exist. The run that it is made from is kept
    beside it, under the same name with .run."""
    to: Annotated[str, arg(metavar="lerobot|hdf5|run")] = "lerobot"
    """LeRobotDataset v3, robomimic's HDF5, or no dataset: the run folder alone."""
    episodes: int
    """Episodes of each task in the dataset. Tasks that lack successes get further trials."""
    failures: bool = False
    """Take every episode, whatever became of it."""
    most: Annotated[int | None, arg(metavar="N")] = None
    """Most trials of each task; by default five times the episodes."""
    record: Literal["numbers", "full"]
    """numbers keeps pictures of envs alone that cannot be shown again from their states; others are
    shown again for the episodes of the dataset. full keeps every picture of every env."""
    fps: Annotated[float | None, arg(metavar="N")] = None
    """Steps per second, where the env does not say."""


def collect(arguments: Sequence[str]) -> int:
    """Collect; 1 where a task has too few successes, 130 after Ctrl-C."""
    parsed = parse_run(Collect, knobs_of(EvalConfig, only=KNOBS), arguments, verb="collect")
    from hocket import cli
    from hocket.cli.export import Teller
    from hocket.exports.collect import CollectConfig, run_folder
    from hocket.exports.collect import collect as collect_into
    from hocket.results.showing.progress import ProgressDisplay
    from hocket.runs.demonstrations.chosen import ExportConfig

    flags = parsed.flags
    config = CollectConfig(
        run=EvalConfig.from_plain({**parsed.config, "video": "none"}),
        to=flags.to,
        failures=flags.failures,
        most=flags.most,
        export=ExportConfig(fps=flags.fps),
    )
    with contextlib.ExitStack() as stack:
        folder = run_folder(flags.out, flags.to)
        plan = RunPlan.of(flags, {"": config.run})
        about = Followed(folder=folder, config=config.run.to_plain())

        def readers() -> list[Reader]:
            told = stack.enter_context(following(plan.readers, about))
            return [stack.enter_context(ProgressDisplay()), *told]

        stack.enter_context(shown(folder, wanted=plan.is_watched))
        teller = stack.enter_context(contextlib.closing(Teller()))
        machines = stack.enter_context(machines_of(plan.machines, more=True))
        done = collect_into(config, flags.out, readers=readers, watcher=teller, elsewhere=machines)
    sys.stderr.write("".join(f"note: {printable(text)}\n" for text in teller.notes))
    if not done.is_complete:
        sys.stderr.write("Interrupted; the same command goes on from here.\n")
        return cli.INTERRUPTED
    sys.stdout.write(
        f"{flags.out}: {done.episodes} episodes of {done.trials} trials as {flags.to}\n"
        f"Run folder: {done.run}\n"
    )
    return cli.OK
