"""`hocket check` with a policy behind a server."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hocket.runs.checks.check import run_check
from hocket.runs.config import EvalConfig
from support.running_server import WAIT_S
from support.stock_openpi import StockServer


def test_check_shows_what_the_server_receives(tmp_path: Path) -> None:
    mapping = tmp_path / "mine.yaml"
    mapping.write_text(
        "request: {images/top: {from: observation/image, resize: [48, 64]}}\nnested: [images]\n"
    )
    actions = {"actions": np.zeros((8, 4))}
    with StockServer(lambda _: actions) as server:
        config = EvalConfig(
            env=("toy:pixels",),
            policy=f"openpi://{server.address}",
            policy_config={"mapping": str(mapping), "ready_timeout_s": WAIT_S},
        )
        result = run_check(config, suite="toy:pixels", task=None)
        received = server.requests[0]["images"]["top"]
    assert result.problems == ()
    assert result.sent is not None
    assert list(result.sent) == ["images/top", "prompt"]
    assert np.array_equal(result.pictures["images/top"], received)
    assert received.shape == (48, 64, 3)
