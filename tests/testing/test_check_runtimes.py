"""Each rule of check_runtime catches a runtime that breaks it, and ours keep them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hocket.core.contracts.link import Link
from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Observation
from hocket.core.wire import Describe, Executed, Failed, Hello, Message, Ready
from hocket.errors import WorkerFailed
from hocket.testing import ConformanceError, check_runtime, runtime_findings
from hocket.workers.inline import InlineRuntime
from hocket.workers.local.runtime import LocalRuntime
from support.processes import DEADLINE_S


class Wrapped:
    """A link that passes everything on, to be broken in one way each."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def receive(self) -> list[Message]:
        return [self.heard(message) for message in self._link.receive()]

    def heard(self, message: Message) -> Message:
        return message


class Silent(Wrapped):
    def receive(self) -> list[Message]:
        return [message for message in self._link.receive() if not isinstance(message, Hello)]


class StaleArrays(Wrapped):
    kept: Observation | None = None

    def arrays(self, lane: int) -> Observation:
        if self.kept is None:
            self.kept = {key: array.copy() for key, array in self._link.arrays(lane).items()}
        return self.kept


class BlindReady(Wrapped):
    def heard(self, message: Message) -> Message:
        return message._replace(spec=None) if isinstance(message, Ready) else message


class WrongRewards(Wrapped):
    def heard(self, message: Message) -> Message:
        if isinstance(message, Executed):
            return message._replace(rewards=bytes(len(message.rewards)))
        return message


class DeafToDescribe(Wrapped):
    def send(self, message: Message) -> bool:
        return True if isinstance(message, Describe) else self._link.send(message)


class Uncounted(Wrapped):
    def steps(self, lane: int) -> int:
        return 0


class Uncontrolled(Wrapped):
    def control(self, lane: int, word: int) -> None: ...


class NoWords(Wrapped):
    def heard(self, message: Message) -> Message:
        return message._replace(message="") if isinstance(message, Failed) else message


class WordlessEnd(Wrapped):
    def receive(self) -> list[Message]:
        try:
            return self._link.receive()
        except WorkerFailed:
            raise WorkerFailed("") from None


class Speechless(Wrapped):
    def last_words(self) -> str:
        return ""


class Endless(Wrapped):
    def receive(self) -> list[Message]:
        try:
            return self._link.receive()
        except WorkerFailed:
            return []


class FragileKill(Wrapped):
    is_dead = False

    def kill(self) -> None:
        if self.is_dead:
            raise RuntimeError("dead already")
        self.is_dead = True
        self._link.kill()


class Undying(Wrapped):
    def kill(self) -> None: ...


class Wrapping:
    """A runtime with links of some kind."""

    def __init__(self, runtime: Runtime, kind: type[Wrapped]) -> None:
        self._kind = kind
        self._runtime = runtime
        self._links: list[Link] = []

    def start(self, spec: WorkerSpec) -> Any:
        self._links.append(self._runtime.start(spec))
        return self._kind(self._links[-1])

    def close(self) -> None:
        for link in self._links:
            link.kill()
        self._runtime.close()


class FragileClose(InlineRuntime):
    is_closed = False

    def close(self) -> None:
        if self.is_closed:
            raise RuntimeError("closed already")
        self.is_closed = True
        super().close()


BROKEN: list[tuple[type[Wrapped], str]] = [
    (Silent, "start() gives a link, whose first message is Hello."),
    (BlindReady, "Begin is answered by Ready"),
    (StaleArrays, "Execute is answered by Executed"),
    (WrongRewards, "Execute is answered by Executed"),
    (DeafToDescribe, "Describe is answered"),
    (Uncounted, "steps() counts every step"),
    (Uncontrolled, "control() recalls a chunk"),
    (NoWords, "An error of the env is told as Failed"),
    (Endless, "Close ends the worker"),
    (FragileKill, "kill() ends a worker"),
]
BROKEN_PROCESSES: list[Any] = [
    (WordlessEnd, "A worker that dies ends its link", DEADLINE_S),
    (Speechless, "last_words() says where", DEADLINE_S),
    # What never comes is awaited to the end, and a busy machine is slow to start a worker.
    pytest.param(Undying, "kill() ends a worker", 15.0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("make", [InlineRuntime, LocalRuntime])
def test_our_runtimes_are_sound(make: Callable[[], Any]) -> None:
    check_runtime(make)


@pytest.mark.parametrize(("kind", "rule"), BROKEN)
def test_a_broken_runtime_is_told_which_rule_it_breaks(kind: type[Wrapped], rule: str) -> None:
    findings = runtime_findings(lambda: Wrapping(InlineRuntime(), kind), deadline_s=1.0)
    assert any(finding.rule.startswith(rule) for finding in findings), findings


@pytest.mark.parametrize(("kind", "rule", "deadline_s"), BROKEN_PROCESSES)
def test_a_runtime_of_broken_processes_is_told_so(
    kind: type[Wrapped], rule: str, deadline_s: float
) -> None:
    findings = runtime_findings(lambda: Wrapping(LocalRuntime(), kind), deadline_s=deadline_s)
    assert any(finding.rule.startswith(rule) for finding in findings), findings


def test_a_runtime_that_cannot_be_closed_twice_is_told_so() -> None:
    with pytest.raises(ConformanceError, match="close\\(\\) ends every worker"):
        check_runtime(FragileClose)
