"""Whatever is asked of rows and in whatever order, each of them does what it would do alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hocket.core.data import Array, SuccessRule
from hocket.core.wire import (
    END_JUDGED,
    END_OBSERVED,
    END_SUCCESS,
    END_TERMINATED,
    END_TRUNCATED,
    Executed,
    Failed,
)
from support.row_script import KEY, Did, Script, ScriptedHost, Scripts


def end_of(did: Sequence[Did], rule: SuccessRule, limit: int | None) -> int:
    """The flags of an episode after these steps, by a plain loop; 0 where it goes on."""
    flags = outcome = 0
    for steps, one in enumerate(did, 1):
        assert not flags, "A row moved on after its end."
        if rule == "final":
            outcome &= ~END_SUCCESS
        if one.success is not None:
            outcome |= END_JUDGED | (END_SUCCESS if one.success else 0)
        if one.is_terminated or (one.success and rule == "first"):
            flags |= END_TERMINATED
        if one.is_truncated or (steps == limit and not flags):
            flags |= END_TRUNCATED
    return flags | outcome if flags else 0


class Book:
    """One lane as it would be alone."""

    def __init__(self, rig: ScriptedHost, lane: int, rule: SuccessRule, limit: int | None) -> None:
        self.rig, self.lane, self.rule, self.limit = rig, lane, rule, limit
        self.attempt = -1
        self.home = 0
        self.is_begun = False
        self.chunk: Array | None = None
        self.told = 0
        """Steps of this attempt in chunks that have ended."""
        self.before = 0
        """Steps of attempts before this one."""
        self.recalled_at: int | None = None

    @property
    def script(self) -> Script:
        return Scripts.made[self.home]

    @property
    def did(self) -> list[Did]:
        return self.script.did[self.lane] if self.attempt >= 0 else []

    @property
    def done(self) -> int:
        return len(self.did) - self.told

    def begin(self, task: str, *, final: bool) -> None:
        if self.attempt >= 0:
            self.before += len(self.did)
        self.attempt += 1
        self.told = 0
        self.rig.begin([self.lane], self.attempt, task=task, final=final)
        self.home = next(i for i, made in enumerate(Scripts.made) if task in made.tasks)
        self.is_begun = True

    def load(self, chunk: Array) -> None:
        self.chunk, self.recalled_at = chunk, None

    def recall(self) -> None:
        self.rig.recall(self.lane)
        self.recalled_at = self.done if self.recalled_at is None else self.recalled_at

    def discard(self) -> None:
        self.rig.discard(self.lane, self.attempt)
        self.is_begun = False

    def hear(self, message: Executed, index: int, rewards: Array, history: int) -> None:
        """A chunk of this lane has ended."""
        assert self.chunk is not None
        assert message.attempts[index] == self.attempt
        assert message.chunks[index] == self.rig.chunk[self.lane]
        steps, end = message.steps[index], message.ends[index]
        assert steps == self.done, "Steps were made that nobody was told of."
        mine = self.did[self.told :]
        assert [one.action for one in mine] == self.chunk[:steps].tolist()
        assert [one.reward for one in mine] == rewards.tolist()
        assert end & ~END_OBSERVED == end_of(self.did, self.rule, self.limit)
        if not end and self.is_begun and len(self.chunk) != steps:
            assert self.recalled_at is not None
        if self.recalled_at is not None:
            assert steps <= self.recalled_at + (history if history > 1 else 0)
        self.told, self.chunk = len(self.did), None
        if end:
            self.is_begun = False
        if self.is_begun or end & END_OBSERVED:
            self._see(history)

    def _see(self, history: int) -> None:
        now = len(self.did)
        seen = self.rig.host.arrays(self.lane)[KEY]
        last = [max(0, now - back) for back in reversed(range(history))]
        assert seen.reshape(history, -1)[:, 0].tolist() == last

    def check(self) -> None:
        assert self.rig.control.steps(self.lane) == self.before + len(self.did)
        if self.chunk is None and self.is_begun:
            assert not end_of(self.did, self.rule, self.limit)


class Company:
    """All lanes of a rig, and what is asked of them."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        rows = self.draw(st.integers(1, 12), "rows")
        self.history = self.draw(st.sampled_from([1, 1, 3]), "history")
        rule: SuccessRule = self.draw(st.sampled_from(["first", "any", "final"]), "rule")
        limit = self.draw(st.sampled_from([None, 4, 11]), "limit")
        self.apart = self.draw(st.booleans(), "apart")
        self.rig = ScriptedHost(
            rows,
            history=self.history,
            ends=self.draw(st.sampled_from([0.0, 0.03, 0.3]), "ends"),
            judges=self.draw(st.sampled_from(["always", "never", "now and then"]), "judges"),
            success_rule=rule,
            max_steps=limit,
            apart=self.apart,
        )
        self.books = [Book(self.rig, lane, rule, limit) for lane in range(rows)]
        self.numbers = 0

    def some(self, books: list[Book]) -> list[Book]:
        return self.draw(st.lists(st.sampled_from(books), unique=True)) if books else []

    def new_chunk(self, most: int) -> Array:
        count = self.draw(st.integers(1, most))
        self.numbers += count
        return np.arange(self.numbers - count, self.numbers, dtype=np.float64)

    def take_turn(self) -> None:
        idle = [book for book in self.books if not book.is_begun and book.chunk is None]
        for book in idle if self.draw(st.booleans()) else self.some(idle):
            task = self.draw(st.sampled_from(["first", "second"]))
            book.begin(task, final=self.draw(st.booleans()))
        self._load([book for book in self.books if book.is_begun and book.chunk is None])
        running = [book for book in self.books if book.chunk is not None]
        self._disturb(running)
        calls = iter([*[False] * self.draw(st.integers(0, 12)), True])
        self.rig.work(
            self.draw(st.sampled_from([0.0, 4.0, 1e6])),
            awaits_all=self.draw(st.booleans()),
            is_called=lambda: next(calls, True),
        )
        self.hear()

    def _load(self, ready: list[Book]) -> None:
        chosen = ready if self.draw(st.booleans()) else self.some(ready)
        if not chosen:
            return
        chunks = [self.new_chunk(9) for _ in chosen]
        if self.draw(st.booleans()):
            chunks = [chunks[0] + 1000.0 * index for index in range(len(chosen))]
        for book, chunk in zip(chosen, chunks, strict=True):
            book.load(chunk)
        self.rig.execute([b.lane for b in chosen], chunks, [b.attempt for b in chosen])

    def _disturb(self, running: list[Book]) -> None:
        for book in self.some(running)[:2]:
            assert book.chunk is not None
            what = self.draw(st.sampled_from(["recall", "discard", "nothing"]))
            if what == "recall":
                book.recall()
            elif what == "discard":
                book.discard()
            self.hear()
        if self.draw(st.booleans()):
            self.rig.host.rule.expect(1, self.rig.seconds + 1.5)

    def hear(self) -> None:
        for message in self.rig.take():
            assert not isinstance(message, Failed), message
            if isinstance(message, Executed):
                rewards = np.split(np.frombuffer(message.rewards), np.cumsum(message.steps))
                for index, lane in enumerate(message.lanes):
                    self.books[lane].hear(message, index, rewards[index], self.history)
        for book in self.books:
            book.check()

    def come_to_an_end(self) -> None:
        """All chunks that run end, however few rows are left."""
        for _ in range(200):
            if not self.rig.work(awaits_all=True) and self.rig.host.due_s() is None:
                break
            self.hear()
        assert all(book.chunk is None for book in self.books)


# (A schedule that fails is short enough to be read as it is.)
@settings(phases=[Phase.generate])
@given(data=st.data())
def test_a_row_does_what_it_would_do_alone_whatever_is_asked_of_others(data: st.DataObject) -> None:
    company = Company(data)
    for _ in range(data.draw(st.integers(1, 15), "turns")):
        company.take_turn()
    company.come_to_an_end()
    for script in Scripts.made:
        assert [] not in script.masks, "A step was made that moved nobody."
