"""The sink that makes videos: one H.264 file for each camera.

The same sink works in line, where it is fed as the episode runs, and afterwards, where a worker
restores stored states one by one: it encodes what it is fed, at 20 frames a second or a little
more. In line it is asked for only where an env cannot be rendered afterwards. Encoding happens on a
thread beside the env; frames wait in a queue, and when that is full the env waits: nothing is ever
dropped. A video that may turn out to be unwanted is encoded at its end alone: until then its frames
lie in a file as they are, which takes a fifth of the time.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.contracts.recorder import (
    DRAWN,
    IMAGES,
    RESTORED,
    VIDEO,
    AttemptStart,
    SinkNeeds,
    StepRecord,
    Track,
)
from hocket.core.data import Array, Episode, Outcome
from hocket.core.specs import TaskInfo
from hocket.errors import ObservationError, RunFolderError
from hocket.workers.sinks.encoder import Quality, VideoFile, exact_rate, require_encoder
from hocket.workers.sinks.pictures import as_frame, cameras_in, caption, draw_lines
from hocket.workers.sinks.spill import NoTrack, Spill, read_spill

QUALITY = "quality"
"""How a restored state is rendered: `look`, for people, or `full`, as policies are given it."""
OUTCOME = "outcome"
STEPS = "steps"
"""The outcome and the length, where the episode has ended before it is rendered."""
_SLOWEST_RATE = 20
"""Frames a second below which a video stutters."""
_AT_ONCE = 16
"""Frames that are encoded one after the other: alone, each would find the caches cold, which
doubles what it takes. Never more than a quarter of a second of them."""
_WAITING = 2
"""How many such groups may wait for the encoder."""
_LONGEST_WAIT_S = 120.0
"""A disk that takes no frame for this long is an error."""
_REEL = 32 << 20
"""Most bytes of frames of an attempt that wait to be encoded until it is known whether they are
wanted: 160 frames of 256 pixels. An attempt with more is encoded while it runs."""
ANSWERS_FILE = "answers.npz"
"""What the policy answered in an episode that was filmed; the parent writes it beside the film."""

_KEPT = {
    "failures": (Outcome.FAILURE, Outcome.ERROR),
    "others": (Outcome.SUCCESS, Outcome.FINISHED, Outcome.ERROR),
    "errors": (Outcome.ERROR,),
}
"""The outcomes with which a video is kept, by what was asked; with all where it is not named."""

Frame = tuple[str, Array, list[str]]
"""A picture of a camera, with lines to burn in."""


def is_rendered_later(abilities: Collection[str]) -> bool:
    """True if an env can show an episode again: from its states, observed without a step. Rows of
    a batched simulator are rendered while they run."""
    return {"snapshot", "deferred"} <= set(abilities) and "batched" not in abilities


def is_drawn(abilities: Collection[str]) -> bool:
    """True if the pictures of a video are drawn for it: the env is not observed at every step."""
    return "deferred" in abilities or "batched" in abilities


def rerender_record(
    episode: Episode, *, images: bool = False, quality: str = "full"
) -> dict[str, Any]:
    """What is asked of the sinks where an ended episode is rendered from its states."""
    kind = IMAGES if images else VIDEO
    return {
        kind: "all",
        RESTORED: True,
        QUALITY: quality,
        OUTCOME: episode.outcome.value,
        STEPS: episode.steps,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoConfig:
    """Which cameras have a video, and how it is made."""

    cameras: tuple[str, ...] = ()
    """Keys of the observation; none means every camera that there is."""
    overlay: bool = False
    """Burn in the task, the step and the outcome (in line, the outcome on the last frame only)."""
    lossless: bool = False
    """Keep every pixel, for datasets, in `<camera>.lossless.m4v`."""
    crf: int = Quality().crf
    preset: str = Quality().preset


class VideoSink:
    """Makes videos of the attempts that it is asked to, in a worker."""

    Config = VideoConfig
    files = ("*.mp4", "*.lossless.m4v", ANSWERS_FILE)

    def __init__(self, argument: str = "", config: VideoConfig | None = None) -> None:
        del argument
        self.config = config or VideoConfig()
        self.needs = SinkNeeds()
        self._kind = IMAGES if self.config.lossless else VIDEO

    def needs_of(
        self, task: TaskInfo, record: Mapping[str, Any], abilities: Collection[str]
    ) -> SinkNeeds:
        if not self._is_wanted(record, abilities):
            return SinkNeeds()
        return SinkNeeds(
            observations=True,
            cameras=self.config.cameras,
            all_cameras=not self.config.cameras,
            stride=1 if self.config.lossless else stride_of(task.control_rate),
        )

    def open(self, start: AttemptStart) -> Track:
        if not self._is_wanted(start.record, start.abilities):
            return NoTrack()
        return VideoTrack(self.config, start, str(start.record[self._kind]))

    def _is_wanted(self, record: Mapping[str, Any], abilities: Collection[str]) -> bool:
        if not record.get(self._kind):
            return False
        if record.get(RESTORED):
            return True
        if is_drawn(abilities) and not record.get(DRAWN, True):
            return False
        return record[self._kind] != "later" and not is_rendered_later(abilities)


class VideoTrack:
    """The video of one attempt: a frame for the reset, and one for each step, or for one of several
    where the env is controlled faster than people look; always one for the last. `keep` says at
    which ends it is kept, as `VIDEO` in what is asked."""

    def __init__(self, config: VideoConfig, start: AttemptStart, keep: str) -> None:
        quality = Quality(crf=config.crf, preset=config.preset, lossless=config.lossless)
        self._config = config
        self._codec = quality.codec
        self._start = start
        self._keep = keep
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._held: dict[str, Array] = {}
        self._held_step = 0
        rate = start.task.control_rate
        self._stride = 1 if config.lossless else stride_of(rate)
        kind = EncoderThread if keep == "all" else Reel
        self._encoder = kind(Path(start.folder), exact_rate(rate) / self._stride, quality)

    def step(self, record: StepRecord) -> None:
        is_due = record.step % self._stride == 0
        if record.observation is None:
            if not is_due:
                return
            raise ObservationError(f"There is no observation of step {record.step} to film.")
        if not self._shapes:
            keys = self._config.cameras or cameras_in(record.observation)
            if keys:
                require_encoder(self._codec)
            self._shapes = {key: () for key in keys}
        frames = {key: self._frame(key, record) for key in self._shapes}
        # The one before, since only when sealed is it known which is the last.
        if self._held_step % self._stride == 0:
            self._release("")
        self._held, self._held_step = frames, record.step
        if is_due and not self._config.overlay:
            self._release("")  # The env may die in its next step.

    def seal(self, outcome: Outcome) -> Sequence[str]:
        if outcome not in _KEPT.get(self._keep, Outcome):
            self.discard()
            return ()
        self._release(outcome.value)
        return [str(path) for path in self._encoder.seal()]

    def discard(self) -> None:
        self._held = {}
        self._encoder.discard()

    def _frame(self, key: str, record: StepRecord) -> Array:
        assert record.observation is not None
        array = record.observation.get(key)
        if array is None:
            raise ObservationError(
                f"The observation of step {record.step} has no camera {key!r}. It has: "
                f"{', '.join(sorted(record.observation))}."
            )
        known = self._shapes[key]
        if known and array.shape != known:
            raise ObservationError(
                f"The camera {key!r} changed its size from {known} to {array.shape} at step "
                f"{record.step}. A video has one size: render the camera in one."
            )
        self._shapes[key] = array.shape
        frame = as_frame(key, array, record.step)
        # The env may draw its next picture over this one.
        return np.array(frame) if np.may_share_memory(frame, array) else frame

    def _release(self, outcome: str) -> None:
        """Give the frames of the step before to the encoder."""
        lines: list[str] = []
        if self._config.overlay:
            record = self._start.record
            told = outcome or str(record.get(OUTCOME, ""))
            lines = caption(self._start.task.name, self._held_step, record.get(STEPS), told)
        for key, frame in self._held.items():
            self._encoder.put(key, frame, lines)
        self._held = {}


class EncoderThread:
    """Writes the files of one attempt, on a thread of its own."""

    def __init__(self, folder: Path, rate: Fraction, quality: Quality) -> None:
        self._folder = folder
        self._rate = rate
        self._quality = quality
        self._files: dict[str, VideoFile] = {}
        self._at_once = max(1, min(_AT_ONCE, int(rate / 4)))
        self._group: list[Frame] = []
        self._waiting: queue.Queue[list[Frame] | None] = queue.Queue(_WAITING)
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None

    def put(self, key: str, frame: Array, lines: list[str]) -> None:
        """Add a camera's next frame, with lines to burn in; waits while the queue is full."""
        if self._failure is not None:
            raise self._failure
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="hocket-video", daemon=True)
            self._thread.start()
        self._group.append((key, frame, lines))
        if len(self._group) >= self._at_once:
            self._send(self._group)
            self._group = []

    def seal(self) -> list[Path]:
        """Wait for all frames, and make the files durable."""
        self._stop()
        if self._failure is not None:
            raise self._failure
        return [file.path for file in self._files.values() if file.seal()]

    def discard(self) -> None:
        self._stop()
        for file in self._files.values():
            file.discard()

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._send(self._group)
            self._send(None)
            thread.join(_LONGEST_WAIT_S)
            if thread.is_alive():
                raise self._stuck()

    def _send(self, group: list[Frame] | None) -> None:
        try:
            self._waiting.put(group, timeout=_LONGEST_WAIT_S)
        except queue.Full:
            raise self._stuck() from None

    def _stuck(self) -> RunFolderError:
        return RunFolderError(
            f"No video could be written to {str(self._folder)!r} for {_LONGEST_WAIT_S:.0f} s; its "
            f"disk may hang."
        )

    def _write(self) -> None:
        while (group := self._waiting.get()) is not None:
            try:
                for item in group if self._failure is None else ():
                    self._add(*item)
            except Exception as exc:  # noqa: BLE001 - raised again where frames come from
                self._failure = exc

    def _add(self, key: str, frame: Array, lines: list[str]) -> None:
        file = self._files.get(key)
        if file is None:
            path = self._folder / file_name(key, lossless=self._quality.lossless)
            if any(path == other.path for other in self._files.values()):
                raise ObservationError(f"Two cameras would be filmed as {path.name!r}. Rename one.")
            file = self._files[key] = VideoFile(path, self._rate, self._quality)
        file.write(draw_lines(frame, lines) if lines else frame)


class Reel(EncoderThread):
    """Keeps the frames of one attempt in files as they are, which outlive the worker, until it is
    known that they are wanted. Beyond `_REEL` bytes it encodes them."""

    def __init__(self, folder: Path, rate: Fraction, quality: Quality) -> None:
        super().__init__(folder, rate, quality)
        self._spills: dict[str, Spill] = {}
        self._room = _REEL

    def put(self, key: str, frame: Array, lines: list[str]) -> None:
        if self._room <= 0:
            super().put(key, frame, lines)
            return
        spill = self._spills.get(key)
        if spill is None:
            spill = self._spills[key] = Spill(self._folder, file_name(key), is_on=True)
            spill.write([np.array(self._rate.as_integer_ratio())])
        spill.write([draw_lines(frame, lines) if lines else frame])
        self._room -= frame.nbytes
        if self._room <= 0:
            self._encode()

    def seal(self) -> list[Path]:
        self._encode()
        return super().seal()

    def discard(self) -> None:
        self._close()
        super().discard()

    def _encode(self) -> None:
        for key, spill in self._spills.items():
            for frame in read_spill(spill.path)[1:]:
                super().put(key, frame, [])
        self._close()

    def _close(self) -> None:
        for spill in self._spills.values():
            spill.close()
        self._spills = {}


def finish_reel(path: Path) -> None:
    """Make a video of the frames that a process that died left in a hidden file of a reel."""
    rate, *frames = read_spill(path)
    whole = path.with_name(path.with_suffix("").stem[1:])
    file = VideoFile(whole, Fraction(*map(int, rate)), Quality())
    for frame in frames:
        file.write(frame)
    file.seal()


def stride_of(rate: float | None) -> int:
    """Steps from one frame of a video to the next, for an env that is controlled at `rate` steps a
    second: 20 to 40 frames a second are left, or all there are."""
    return max(1, int((rate or 0.0) // _SLOWEST_RATE))


def camera_name(key: str) -> str:
    """A key without what all keys begin with, and without slashes."""
    return key.removeprefix("observation/").replace("/", ".")


def file_name(camera: str, *, lossless: bool = False) -> str:
    """The name of a camera's video: that of `observation/wrist_image` is `wrist_image.mp4`."""
    return camera_name(camera) + _suffix(lossless=lossless)


def videos_in(folder: Path, *, lossless: bool = False) -> dict[str, Path]:
    """The sealed videos in an attempt's folder, by the camera's name without `observation/`."""
    suffix = _suffix(lossless=lossless)
    found = sorted(folder.glob(f"[!.]*{suffix}"))
    return {path.name.removesuffix(suffix): path for path in found}


def _suffix(*, lossless: bool) -> str:
    # An MP4 too, but one that browsers cannot play: not to be taken for the others.
    return ".lossless.m4v" if lossless else ".mp4"
