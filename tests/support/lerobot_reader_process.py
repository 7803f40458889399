"""LeRobot's own interpreter, which opens a dataset and tells what it sees."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from support.parts import ROOT, python_of

PYTHON = python_of("lerobot")


def read_with_lerobot(dataset: Path, scratch: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What LeRobot says of a dataset, and its arrays by feature, all frames stacked."""
    out = scratch / f"{dataset.name}.npz"
    reader = ROOT / "tests" / "support" / "lerobot_reader.py"
    done = subprocess.run(
        [str(PYTHON), str(reader), str(dataset), str(out)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(scratch / "cache")},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    with np.load(out) as read:
        return told, {name: read[name] for name in read.files}
