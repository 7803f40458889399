from __future__ import annotations

import threading

import pytest
import torch

from hocket.train.learner.weights import WeightBlock


def _parameters(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((300, 300), value), "b": torch.full((3,), value, dtype=torch.float64)}


def test_the_other_side_reads_what_was_published_last() -> None:
    ours = WeightBlock(_parameters(0))
    theirs = WeightBlock(_parameters(0), fd=ours.fd)
    assert theirs.version == -1
    got = _parameters(-1)
    for version in range(5, 9):
        ours.publish(_parameters(version), version)
        assert theirs.read(got) == version
        assert all((tensor == version).all() for tensor in got.values())
    ours.close()


def test_versions_can_only_be_published_in_order() -> None:
    block = WeightBlock(_parameters(0))
    block.publish(_parameters(3), 3)
    for version in (3, 2, 5):
        with pytest.raises(ValueError, match="cannot follow"):
            block.publish(_parameters(0), version)
    block.close()


def test_a_block_of_another_network_is_refused() -> None:
    block = WeightBlock(_parameters(0))
    with pytest.raises(ValueError, match="another network"):
        WeightBlock({"a": torch.zeros(5)}, fd=block.fd)
    block.close()


def test_weights_are_never_half_of_two_versions_while_the_learner_publishes() -> None:
    block = WeightBlock(_parameters(0))
    block.publish(_parameters(0), 0)
    stop = threading.Event()

    def publish() -> None:
        version = 0
        while not stop.is_set():
            version += 1
            block.publish(_parameters(version), version)

    learner = threading.Thread(target=publish)
    learner.start()
    got = _parameters(-1)
    try:
        for _ in range(300):
            version = block.read(got)
            assert all((tensor == version).all() for tensor in got.values())
    finally:
        stop.set()
        learner.join(10)
    block.close()
