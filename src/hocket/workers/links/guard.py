"""What a worker may say that is not trusted: answers to what it was asked, and nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hocket.core.claims import require
from hocket.core.contracts.recorder import EVIDENCE
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Trial
from hocket.core.specs import EnvSpec, TaskInfo
from hocket.core.wire import (
    Begin,
    Describe,
    Described,
    Ended,
    Execute,
    Executed,
    Failed,
    Hello,
    Message,
    Observed,
    Open,
    Piece,
    Progress,
    Pulse,
    Ready,
    Remark,
    Render,
    Said,
    Sealed,
    Told,
)
from hocket.errors import WireError
from hocket.workers.links.files import QUOTA, Incoming, LeftFolder, declared_names

_LIFE = (Progress, Pulse, Said, Ended)
"""What a worker elsewhere says of itself, at any time."""
_MOST_REMARKS = 100
"""How often a worker may tell the user of an attempt. There are a few sentences to say."""


class Question(NamedTuple):
    """What a lane was asked, and so what it has to answer next."""

    answer: type[Any]
    attempt: int
    chunk: int
    incoming: Incoming
    """Takes the files of the attempt."""
    actions: int = 0
    """Most steps of the chunk."""
    looks: bool = False
    """True where Observed may come first."""


class Begun(NamedTuple):
    """The attempt that a lane was told to begin last."""

    attempt: int
    slug: str
    """The name of its trial."""
    incoming: Incoming
    """Takes its files."""
    keeps: bool
    """True where files may come without its end, because it is lost."""
    remarks: int = 0
    """How many were made of it."""


class Guard:
    """Follows what a link asks and lets answers through, with the files of sinks taken out of them.
    It raises WireError for anything else."""

    def __init__(
        self, spec: WorkerSpec, quota: int = QUOTA, left: LeftFolder | None = None
    ) -> None:
        """`left` is where a worker writes whose files are still there when it has died."""
        self._left = left
        self._asked: list[deque[Question]] = [deque() for _ in range(spec.lanes)]
        self._begun: dict[int, Begun] = {}
        """By lane."""
        self._describing = 0
        self._is_new = True
        self._patterns = declared_names(spec.sinks)
        self._folder = spec.folder
        self._tells = spec.tells
        self._quota = quota
        self.has_files = False
        """True while files come."""

    def ask(self, message: Message) -> Message:
        """Note what a message asks for; gives it as the worker may see it: without paths of this
        machine."""
        if isinstance(message, Execute):
            looks, counts = bool(message.courses), message.counts
            if looks:
                pairs = zip(counts, message.courses, strict=True)
                counts = [count + course.before + course.after for count, course in pairs]
            rows = zip(message.lanes, message.attempts, message.chunks, counts, strict=True)
            for lane, attempt, chunk, most in rows:
                incoming = self._begun[lane].incoming
                question = Question(Executed, attempt, chunk, incoming, most, looks)
                self._asked[lane].append(question)
        elif isinstance(message, Begin):
            begun = zip(
                message.lanes, message.attempts, message.trials, message.record, strict=True
            )
            for lane, attempt, trial, record in begun:
                incoming = self._incoming(trial, attempt, record)
                keeps, slug = bool(record.get(EVIDENCE)), Trial(*trial).slug
                self._begun[lane] = Begun(attempt, slug, incoming, keeps)
                self._asked[lane].append(Question(Ready, attempt, -1, incoming))
            return message._replace(record=[_without_folder(record) for record in message.record])
        elif isinstance(message, Render):
            incoming = self._incoming(message.trial, message.attempt, message.record)
            self._asked[message.lane].append(Question(Sealed, message.attempt, -1, incoming))
            return message._replace(record=_without_folder(message.record))
        elif isinstance(message, Describe):
            self._describing += 1
        elif isinstance(message, Open):
            folder = None if self._left is None else self._left.inside
            return Open({**message.spec, "folder": folder, "sends_files": True})
        return message

    def admit(self, messages: list[Message]) -> list[Message]:
        """The messages that are answers; pieces of files are put where they belong."""
        let_in = []
        for message in messages:
            admitted = self._admit(message)
            if admitted is not None:
                let_in.append(admitted)
        return let_in

    def close(self) -> None:
        """Leave nothing behind of attempts whose files are not whole. Those that were to leave some
        if they were lost are lost now."""
        for lane, begun in self._begun.items():
            if begun.keeps and self._left is not None:
                self._left.hand_over(lane, begun.attempt, begun.slug, begun.incoming)
        for questions in self._asked:
            for question in questions:
                question.incoming.discard()
        for begun in self._begun.values():
            if begun.keeps:
                begun.incoming.discard()

    def _incoming(self, trial: Sequence[Any], attempt: int, record: Mapping[str, Any]) -> Incoming:
        root = record.get("folder") or self._folder
        slug, keeps = Trial(*trial).slug, bool(record.get(EVIDENCE))
        return Incoming(root, slug, attempt, self._patterns, self._quota, keeps=keeps)

    def _taker(self, piece: Piece) -> Incoming:
        """What takes a piece of an attempt that has ended, or that is about to be lost."""
        lane = piece.lane
        asked, begun = self._questions(lane), self._begun.get(lane)
        if (asked and asked[0].answer is Sealed) or begun is None or not begun.keeps:
            return self._expected(lane, Sealed, piece.attempt)[0].incoming
        _require(begun.attempt == piece.attempt, piece)
        return begun.incoming

    def _admit(self, message: Message) -> Message | None:
        require(message)
        if isinstance(message, Executed):
            self._executed(message)
        elif isinstance(message, Observed):
            self._observed(message)
        elif isinstance(message, Told):
            self._told(message)
        elif isinstance(message, Ready):
            self._ready(message)
        elif isinstance(message, Piece):
            self._taker(message).take(message)
            self.has_files = True
            return None
        elif isinstance(message, Sealed):
            question = self._answered(message.lane, Sealed, message.attempt)
            self.has_files = False
            return message._replace(files=question.incoming.finish(message.files))
        elif isinstance(message, Failed):
            self._failed(message)
        elif isinstance(message, Described):
            self._describing -= 1
            for task in message.tasks:
                require(TaskInfo(**task))
            _require(self._describing >= 0, message)
        elif isinstance(message, Hello):
            _require(self._is_new, message)
            self._is_new = False
        elif isinstance(message, Progress):
            _require(len(message.steps) == len(self._asked), message)
        elif isinstance(message, Remark):
            begun = self._begun[message.lane]
            _require(begun.attempt == message.attempt and begun.remarks < _MOST_REMARKS, message)
            self._begun[message.lane] = begun._replace(remarks=begun.remarks + 1)
        else:
            _require(isinstance(message, _LIFE), message)
        return message

    def _answered(self, lane: int, kind: type[Any], attempt: int, chunk: int = -1) -> Question:
        """Take the lane's next question, which the message must answer."""
        return self._expected(lane, kind, attempt, chunk).popleft()

    def _expected(
        self, lane: int, kind: type[Any], attempt: int, chunk: int = -1
    ) -> deque[Question]:
        asked = self._questions(lane)
        if not asked or asked[0][:3] != (kind, attempt, chunk):
            raise WireError(f"{kind.__name__} of lane {lane!r:.20} answers nothing that was asked.")
        return asked

    def _questions(self, lane: int) -> deque[Question]:
        """What a lane was asked; nothing where there is no such lane."""
        return self._asked[lane] if 0 <= lane < len(self._asked) else deque()

    def _ready(self, message: Ready) -> None:
        for lane, attempt, _ in zip(message.lanes, message.attempts, message.prompts, strict=True):
            self._answered(lane, Ready, attempt)
        _require(bool(message.lanes), message)
        if message.spec is not None:
            require(EnvSpec.from_plain(message.spec))

    def _executed(self, message: Executed) -> None:
        *columns, rewards, ends, busy_s, observe_s, _ = message
        for lane, attempt, chunk, steps, end, *_ in zip(
            *columns, ends, busy_s, observe_s, strict=True
        ):
            question = self._answered(lane, Executed, attempt, chunk)
            _require(steps <= question.actions, message)
            if end:
                self._begun[lane] = self._begun[lane]._replace(keeps=False)
                self._asked[lane].appendleft(Question(Sealed, attempt, -1, question.incoming))
        _require(len(rewards) == 8 * sum(message.steps), message)

    def _told(self, message: Told) -> None:
        """Check numbers, which come before the answer of their chunk."""
        rows = zip(message.lanes, message.attempts, message.chunks, message.steps, strict=True)
        for lane, attempt, chunk, steps in rows:
            question = self._expected(lane, Executed, attempt, chunk)[0]
            _require(steps <= question.actions, message)
        _require(self._tells, message)
        for packed in message.numbers.values():
            _require(len(packed) == 8 * sum(message.steps), message)

    def _observed(self, message: Observed) -> None:
        rows = zip(message.lanes, message.attempts, message.chunks, message.steps, strict=True)
        for lane, attempt, chunk, steps in rows:
            asked = self._expected(lane, Executed, attempt, chunk)
            _require(asked[0].looks, message)
            _require(steps <= asked[0].actions, message)
            asked[0] = asked[0]._replace(looks=False)

    def _failed(self, message: Failed) -> None:
        self.has_files = False
        if message.lane == -1:
            self._describing = 0
            return
        asked = self._questions(message.lane)
        _require(bool(asked) and asked[0].attempt == message.attempt, message)
        asked.popleft().incoming.discard()
        begun = self._begun.get(message.lane)
        if begun is not None and begun.attempt == message.attempt:
            self._begun[message.lane] = begun._replace(keeps=False)


def _without_folder(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "folder"}


def _require(claim: bool, message: Message) -> None:  # noqa: FBT001
    if not claim:
        raise WireError(f"A {type(message).__name__} message is not what it should be.")
