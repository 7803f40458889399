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
CHECKS_06 = [
    f"{kind}_{what}"
    for kind in ("pi0", "pi05")
    for what in ("flows_as_it_acts", "is_cloned", "is_trained_with_an_adapter")
] + ["pi05_learns_the_same_where_activations_are_computed_again"]
pytestmark = needs(PYTHON)


@pytest.mark.parametrize("check", [*CHECKS, *CHECKS_06])
def test_training(check: str) -> None:
    script = str(ROOT / "tests" / "support" / "lerobot_training.py")
    assert f"{check} holds" in in_lerobots_interpreter(script, check)
