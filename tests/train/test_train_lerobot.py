"""LeRobot policies are trained in the interpreter that has LeRobot."""

from __future__ import annotations

import pytest

from adapters.policies.test_lerobot import PYTHON, ROOT, in_lerobots_interpreter, needs

CHECKS = [
    "act_is_wrapped_as_it_acts",
    "act_is_trained_and_evaluated",
    "an_adapter_leaves_answers_as_they_are",
    "act_is_trained_with_an_adapter",
    "smolvla_flows_as_it_acts",
    "smolvla_is_cloned",
    "smolvla_is_trained_with_an_adapter",
    "other_kinds_are_refused",
]
pytestmark = needs(PYTHON)


@pytest.mark.parametrize("check", CHECKS)
def test_training(check: str) -> None:
    script = str(ROOT / "tests" / "support" / "lerobot_training.py")
    assert f"{check} holds" in in_lerobots_interpreter(script, check)
