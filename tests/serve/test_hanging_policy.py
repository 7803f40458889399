"""A policy that never returns, behind a server."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from hocket.adapters.policies.openpi.policy import OpenPI, OpenPIConfig
from hocket.core.data import Batch, Row, Trial
from hocket.errors import PolicyError
from support.hanging_policies import Hanging
from support.running_server import ServePolicy


def batch(seed: int) -> Batch:
    row = Row(
        trial=Trial("s", "t", seed), attempt=0, chunk=0, noise_seed=seed, prompt="", session="0"
    )
    return Batch(arrays={"observation/state": np.zeros((1, 5), np.float32)}, rows=(row,))


def test_clients_of_a_policy_that_hangs_are_told_and_so_is_whoever_comes_later(
    serve_policy: ServePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve_policy(Hanging(1, lock=True), infer_timeout_s=2.0)
    first, second = (
        OpenPI(server.address, OpenPIConfig(retries=0, ready_timeout_s=20.0)) for _ in range(2)
    )
    try:
        assert first.infer(batch(0)).values.shape == (1, 4, 4)
        with caplog.at_level(logging.ERROR, logger="hocket.serve"):
            with pytest.raises(PolicyError, match="has not returned from infer"):
                first.infer(batch(1))
            assert "Restart the server" in caplog.text
        with pytest.raises(PolicyError, match="Restart the server"):
            second.infer(batch(2))
    finally:
        first.close()
        second.close()
