"""The public names of hocket.testing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hocket.testing


def test_every_public_name_can_be_had() -> None:
    assert hocket.testing.__all__ == [
        "ConformanceError", "Finding", "ScriptedPolicy", "ToyEnv", "ToySuite", "batched_findings",
        "check_batched", "check_env", "check_policy", "check_reader", "check_runtime", "check_sink",
        "check_suite", "env_findings", "policy_findings", "reader_findings", "runtime_findings",
        "sink_findings", "suite_findings",
    ]  # fmt: skip
    for name in hocket.testing.__all__:
        assert getattr(hocket.testing, name).__name__ == name
        assert name in dir(hocket.testing)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="check_everything"):
        _ = hocket.testing.check_everything


def test_importing_the_checks_imports_neither_torch_nor_the_engine() -> None:
    code = (
        "import sys; from hocket.testing import *; from hocket.engine.replay import ChunkReplay; "
        "assert not {'torch', 'hocket.engine.loop', 'pyarrow', 'av'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
