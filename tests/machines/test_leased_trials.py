"""The leases of a site, on their way from its connection to its engine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from hocket.core.data import Trial
from hocket.machines.leasing.entries import LeaseId
from hocket.machines.site.site_work import LeasedTrials


@pytest.fixture
def _hasty_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_hasty_threads")
def test_a_lease_is_held_while_it_changes_hands() -> None:
    """The link's thread may ask while the engine's takes the lease in, or gives it back."""
    returned: set[LeaseId] = set()
    trials = LeasedTrials(returned.add)
    is_over = threading.Event()
    missed = []

    def look() -> None:
        number = 0
        while not is_over.is_set():
            wanted = LeaseId(number, 0)
            if wanted in returned:
                number += 1
            elif number in leased and wanted not in trials.held() and wanted not in returned:
                missed.append(wanted)

    leased: set[int] = set()
    looking = threading.Thread(target=look)
    looking.start()
    for number in range(5000):
        trials.lease([(number, 0, Trial("toy", "count", number), {})])
        leased.add(number)
        trials.refresh()
        assert len(trials) == 1
        trials.ask_back([LeaseId(number, 0)])
        trials.refresh()
        assert len(trials) == 0
    is_over.set()
    looking.join()
    assert missed == []
