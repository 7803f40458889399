from __future__ import annotations

import math

import torch

from hocket.train.algorithms.ratios import (
    RatioRule,
    clipped_loss,
    compare,
    joined,
    kl_estimate,
)

MASK = torch.tensor([[True, True, False], [True, False, False]])


def _ratio(correction: str, level: str = "chunk"):
    behaviour = torch.tensor([[-1.0, -2.0, -50.0], [-1.0, 0.0, 0.0]])
    start, new = behaviour + 0.5, behaviour + 0.7
    how = RatioRule(correction=correction, level=level)
    return compare(
        new=new,
        start=start,
        behaviour=behaviour,
        mask=MASK,
        how=how,
    )


def test_actions_that_were_never_executed_do_not_count() -> None:
    log_prob = torch.tensor([[1.0, 2.0, 99.0], [4.0, 99.0, 99.0]])
    assert joined(log_prob, MASK, "chunk").tolist() == [3.0, 4.0]
    assert joined(log_prob, MASK, "action").tolist() == [[1.0, 2.0, 0.0], [4.0, 0.0, 0.0]]


def test_without_correction_the_sampling_policy_is_the_one_to_stay_near() -> None:
    ratio = _ratio("none")
    torch.testing.assert_close(ratio.log, torch.tensor([1.4, 0.7]))
    assert ratio.weight.tolist() == [1.0, 1.0]


def test_decoupled_clips_around_the_start_and_weighs_by_how_far_that_is_from_sampling() -> None:
    ratio = _ratio("decoupled")
    torch.testing.assert_close(ratio.log, torch.tensor([0.4, 0.2]))
    torch.testing.assert_close(ratio.weight, torch.tensor([1.0, 0.5]).exp())


def test_with_fresh_data_every_correction_is_plain_ppo() -> None:
    same = torch.tensor([[-1.0, -2.0, 0.0], [-1.0, 0.0, 0.0]])
    for correction in ("none", "decoupled"):
        new = (same + 0.1).requires_grad_()
        ratio = compare(
            new=new,
            start=same,
            behaviour=same,
            mask=MASK,
            how=RatioRule(level="chunk", correction=correction),
        )
        clipped_loss(ratio, torch.tensor([1.0, -1.0]), 0.2, 0.2).sum().backward()
        expected = torch.tensor([[0.0, 0.0, 0.0], [math.exp(0.1), 0.0, 0.0]])
        # exp(0.2) is beyond the clip for a good chunk, so only the bad one has a gradient.
        torch.testing.assert_close(new.grad, expected)


def test_weights_carry_no_gradient() -> None:
    new = torch.full((2, 3), -0.5).requires_grad_()
    ratio = compare(
        new=new,
        start=torch.full((2, 3), -1.0),
        behaviour=torch.full((2, 3), -1.5),
        mask=MASK,
        how=RatioRule(level="chunk", correction="decoupled"),
    )
    assert not ratio.weight.requires_grad
    assert ratio.log.requires_grad


def test_clip_higher_lets_good_actions_grow_further_than_bad_ones_shrink() -> None:
    ratio = compare(
        new=torch.tensor([[0.22], [0.30]]),
        start=torch.zeros(2, 1),
        behaviour=torch.zeros(2, 1),
        mask=torch.ones(2, 1, dtype=torch.bool),
        how=RatioRule(level="chunk", correction="none"),
    )
    loss = clipped_loss(ratio, torch.ones(2), 0.2, 0.28)
    torch.testing.assert_close(loss, torch.tensor([-math.exp(0.22), -1.28]))


def test_estimated_divergence_is_never_negative() -> None:
    assert (kl_estimate(torch.linspace(-3, 3, 50)) >= 0).all()
