"""What objects keep for rows is put back where it is kept, whatever was bound there meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch

from hocket.adapters.envs.row_state import Ring, RowAxes, RowState
from hocket.errors import SuspensionError

ROWS = 5


class Term:
    """A term as Isaac Lab has them: it can be called, and refers to its env."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)

    def __call__(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Pose:
    raw: torch.Tensor


class Pair(NamedTuple):
    now: torch.Tensor
    before: torch.Tensor


def rows_of(*shape: int, start: float = 0.0) -> torch.Tensor:
    count = int(np.prod(shape))
    return torch.arange(start, start + count, dtype=torch.float32).reshape(shape)


def waited(
    term: Any, change: Callable[[], None], axes: RowAxes | None = None, rows: int = ROWS
) -> None:
    """Rows 1 and 3 wait while something changes the term."""
    state = RowState({"term": term}, rows, axes=axes)
    ids = torch.tensor([1, 3])
    taken = state.take(ids)
    change()
    state.give_back(ids, taken)


def test_a_term_that_can_be_called_is_put_back() -> None:
    term = Term(inner=Term(clock=rows_of(ROWS)))
    waited(term, lambda: term.inner.clock.add_(10))
    assert term.inner.clock.tolist() == [10, 1, 12, 3, 14]


def test_a_tensor_that_was_bound_anew_is_put_back_under_its_name() -> None:
    term = Term(target=rows_of(ROWS))
    seen_by_others = rows_of(ROWS, start=10)

    def rebind() -> None:
        term.target = seen_by_others

    waited(term, rebind)
    assert term.target.tolist() == [10, 1, 12, 3, 14]
    assert seen_by_others.tolist() == [10, 11, 12, 13, 14]


def test_a_tensor_that_was_changed_in_place_stays_the_same_tensor() -> None:
    view = rows_of(ROWS)
    term = Term(state=view)
    waited(term, lambda: view.add_(10))
    assert term.state is view
    assert view.tolist() == [10, 1, 12, 3, 14]


def test_two_names_of_one_tensor_may_part_and_meet() -> None:
    one = rows_of(ROWS)
    term = Term(now=one, last=one)

    def part() -> None:
        term.now = rows_of(ROWS, start=10)

    waited(term, part)
    assert term.now.tolist() == [10, 1, 12, 3, 14]
    assert term.last.tolist() == [0, 1, 2, 3, 4]

    def meet() -> None:
        term.now = term.last = rows_of(ROWS, start=20)

    term.now, term.last = rows_of(ROWS), rows_of(ROWS, start=10)
    waited(term, meet)
    assert term.now.tolist() == [20, 1, 22, 3, 24]
    assert term.last.tolist() == [20, 11, 22, 13, 24]


def test_objects_that_are_made_anew_in_each_step_are_put_back() -> None:
    term = Term(pose=Pose(rows_of(ROWS)), pair=Pair(rows_of(ROWS), rows_of(ROWS)), queue=deque())
    term.queue.extend([rows_of(ROWS), rows_of(ROWS, start=10)])

    def step() -> None:
        term.pose = Pose(rows_of(ROWS, start=10))
        term.pair = Pair(rows_of(ROWS, start=20), term.pair.now)
        term.queue.append(rows_of(ROWS, start=20))
        term.queue.popleft()

    waited(term, step)
    assert term.pose.raw.tolist() == [10, 1, 12, 3, 14]
    assert term.pair.now.tolist() == [20, 1, 22, 3, 24]
    assert term.pair.before.tolist() == [0, 1, 2, 3, 4]
    assert [tensor.tolist() for tensor in term.queue] == [[10, 1, 12, 3, 14], [20, 11, 22, 13, 24]]


def test_arrays_of_numpy_and_arrays_in_slots_are_put_back() -> None:
    class Slotted:
        __slots__ = ("kept",)

    term = Slotted()
    term.kept = {"a": [np.arange(ROWS)]}
    waited(term, lambda: term.kept.update(a=[np.arange(10, 10 + ROWS)]))
    assert term.kept["a"][0].tolist() == [10, 1, 12, 3, 14]


class History:
    def __init__(self, frames: torch.Tensor) -> None:
        self.frames = frames


class Declared(History):
    row_axes: ClassVar = {"frames": 1}


def shifted(term: History) -> Callable[[], None]:
    def shift() -> None:
        term.frames = torch.cat([term.frames[1:], term.frames[:1]])

    return shift


def test_a_buffer_with_time_before_the_rows_is_put_back_along_the_declared_axis() -> None:
    before = rows_of(ROWS, ROWS, 2)
    for axes in (None, RowAxes(others={("History", "frames"): 1})):
        term = Declared(before.clone()) if axes is None else History(before.clone())
        waited(term, shifted(term), axes)
        assert torch.equal(term.frames[:, [1, 3]], before[:, [1, 3]])
        assert torch.equal(term.frames[:, [0, 2, 4]], before.roll(-1, 0)[:, [0, 2, 4]])


@pytest.mark.parametrize("shape", [(ROWS, ROWS, 2), (2, ROWS)])
def test_an_array_whose_rows_nobody_can_tell_may_not_change_while_rows_wait(
    shape: tuple[int, ...],
) -> None:
    term = History(rows_of(*shape))
    waited(term, lambda: None)
    with pytest.raises(SuspensionError, match=r"term\.frames.*number of --lanes.*row_axes"):
        waited(term, shifted(term))


def test_in_packages_that_keep_rows_first_nothing_is_in_doubt() -> None:
    term = History(rows_of(ROWS, ROWS))
    waited(term, lambda: term.frames.add_(100), RowAxes(first=(History.__module__.split(".")[0],)))
    assert term.frames[:, 0].tolist() == [100, 5, 110, 15, 120]


class Delayed:
    """A ring as Isaac Lab's DelayBuffer is one."""

    def __init__(self) -> None:
        self.frames = torch.zeros(3, ROWS)
        self.head = torch.zeros(1, dtype=torch.long)

    def push(self, values: torch.Tensor) -> torch.Tensor:
        self.frames.index_copy_(0, self.head, values[None])
        oldest = self.frames[(self.head + 1) % 3][0].clone()
        self.head.add_(1).remainder_(3)
        return oldest


def test_a_row_that_waits_keeps_its_delay_in_a_ring_that_others_turn() -> None:
    ring, alone = Delayed(), Delayed()
    state = RowState({"r": ring}, ROWS, axes=RowAxes(others={("Delayed", "frames"): Ring("head")}))
    rng = np.random.default_rng()
    for step in range(60):
        waits = rng.random(ROWS) < 0.5
        ids = torch.as_tensor(np.flatnonzero(waits))
        taken = state.take(ids)
        given = ring.push(torch.full((ROWS,), float(step)))
        state.give_back(ids, taken)
        if not waits[2]:
            assert given[2] == alone.push(torch.full((ROWS,), float(step)))[2]


def test_what_was_due_for_a_row_that_waits_is_due_again() -> None:
    term = SimpleNamespace(due=True, clock=rows_of(ROWS))
    axes = RowAxes(latches={("SimpleNamespace", "due"): True})
    waited(term, lambda: setattr(term, "due", False), axes)
    assert term.due is True


def test_an_array_that_appears_while_rows_wait_is_refused() -> None:
    term = Term(clock=rows_of(ROWS))
    state = RowState({"term": term}, ROWS)
    ids = torch.tensor([1])
    state.give_back(ids, state.take(ids))
    term.late = rows_of(ROWS)
    with pytest.raises(SuspensionError, match=r"Term\.late appeared"):
        state.take(ids)


def test_an_array_that_changes_its_shape_is_refused() -> None:
    term = Term(clock=rows_of(ROWS))
    with pytest.raises(SuspensionError, match=r"term\.clock is something else"):
        waited(term, lambda: setattr(term, "clock", rows_of(ROWS, 2)))


def test_what_is_the_same_for_all_rows_is_left_alone() -> None:
    weight = torch.nn.Parameter(rows_of(ROWS))
    term = Term(shared=torch.ones(1).expand(ROWS), weight=weight, clock=rows_of(ROWS))
    waited(term, lambda: term.clock.add_(10))
    assert term.clock.tolist() == [10, 1, 12, 3, 14]
