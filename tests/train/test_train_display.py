from __future__ import annotations

import io

from hocket.train.log import Counts, Display, lines

VALUES: dict[str, float | None] = {
    "train/success": 0.5,
    "train/return": 0.5,
    "learn/entropy": 1.0,
    "learn/kl": 0.01,
    "learn/clip_share": 0.2,
    "learn/staleness": 0.5,
    "time/collecting": 1.0,
    "time/learning": 0.25,
    "count/updates": 3.0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_update_is_told_with_what_matters_first() -> None:
    first, *others = lines(VALUES)
    assert first == "update 3: success 50 %, reward 0.50"
    assert "collecting 100 %, learning 25 %" in others[-1]
    assert "success" not in lines({**VALUES, "train/success": None})[0]


def test_a_log_gets_a_line_now_and_then_and_every_evaluation() -> None:
    stream = io.StringIO()
    display = Display(stream, total_steps=1000)
    display.update(100, VALUES)
    display.update(200, VALUES)
    display.announce("evaluation at 200 steps: 50.0 % succeed")
    display.close()
    assert "100/1,000 steps" in stream.getvalue()
    assert "200/1,000 steps" not in stream.getvalue()
    assert "evaluation at 200 steps" in stream.getvalue()


def test_a_terminal_gets_a_block_that_goes_away_and_evaluations_that_stay() -> None:
    stream = Terminal()
    display = Display(stream, total_steps=1000)
    display.update(100, VALUES)
    display.announce("evaluation at 100 steps")
    display.close()
    display.close()
    assert "evaluation at 100 steps" in stream.getvalue()


def test_without_a_stream_nothing_is_shown() -> None:
    display = Display(None, total_steps=1000)
    display.update(100, VALUES)
    display.announce("evaluation")
    display.close()


def test_what_was_planned_and_is_not_learnt_from_is_outstanding() -> None:
    counts = Counts(planned=10, begun=7, settled=4)
    assert (counts.outstanding, counts.waiting) == (6, 3)


def test_counts_go_on_from_a_checkpoint() -> None:
    counts = Counts(env_steps=40, total_steps=80, episodes=5, dropped=1, filtered=2, lost=3)
    other = Counts()
    other.restore({**counts.to_state(), "version": 9}, ranks=2)
    assert (other.total_steps, other.env_steps, other.updates) == (80, 40, 9)
    assert (other.episodes, other.dropped, other.filtered, other.lost) == (5, 1, 2, 3)
