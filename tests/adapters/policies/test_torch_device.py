"""Batches that are on a device already reach a torch policy without a copy through the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hocket.adapters.policies.torch import TorchPolicy
from hocket.core.data import Array, Batch, Row, Trial
from hocket.engine.inferring.policy_thread import Job, PolicyThread


class Echo(torch.nn.Module):
    """Keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.given: list[Any] = []

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        state = observation["observation/state"]
        self.given.append(state)
        return state[:, None, :].expand(-1, 2, -1) * self.weight


class NumpyPolicy:
    """Knows nothing of devices."""

    def __init__(self) -> None:
        self.spec = TorchPolicy(Echo(), chunk_length=2).spec
        self.given: list[Any] = []

    def infer(self, batch: Batch) -> Array:
        self.given.append(batch.arrays["observation/state"])
        return np.repeat(self.given[-1][:, None, :], 2, axis=1)

    def close(self) -> None:
        """Nothing to let go of."""


def job(stacked: Any, rows: int) -> Job:
    row = Row(
        trial=Trial(suite="s", task="t", seed=0),
        attempt=0,
        chunk=0,
        noise_seed=1,
        prompt="",
        session="s",
    )
    return Job(
        number=1,
        queue="q",
        rows=(row,) * rows,
        views=(),
        action_size=3,
        stacked={"observation/state": stacked},
    )


def test_a_torch_policy_is_given_the_very_tensor() -> None:
    module = Echo()
    seen = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    answer = PolicyThread(TorchPolicy(module, chunk_length=2), "torch").answer(job(seen, 4))
    assert module.given[0].data_ptr() == seen.data_ptr()
    chunk = answer.chunks[2]
    assert chunk is not None
    assert (chunk.actions[0] == seen[2].numpy()).all()


def test_another_policy_is_given_numpys_arrays() -> None:
    policy = NumpyPolicy()
    answer = PolicyThread(policy, "numpy").answer(job(torch.ones(2, 3), 2))
    assert isinstance(policy.given[0], np.ndarray)
    assert answer.errors == [None, None]


def test_stacked_rows_are_halved_and_padded_like_others() -> None:
    policy = NumpyPolicy()
    seat = PolicyThread(policy, "numpy")
    stacked = np.arange(9, dtype=np.float32).reshape(3, 3)

    answer = seat.answer(job(stacked, 3)._replace(pad_to=5))
    assert policy.given[0].tolist() == [*stacked.tolist(), stacked[2].tolist(), stacked[2].tolist()]
    assert len(answer.chunks) == 3
    assert seat.time(job(stacked[:1], 1), 4).seconds >= 0
    assert policy.given[-1].shape == (4, 3)
