"""Most rigs of these tests fork their workers from one interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import rig


@pytest.fixture(scope="session", autouse=True)
def kept_runtime(no_process_stays_behind: None) -> Iterator[None]:
    with rig.kept_runtime():
        yield
