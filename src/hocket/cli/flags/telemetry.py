"""What `--telemetry` adds to the verbs that make a run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.core.contracts.recorder import Reader


@contextlib.contextmanager
def told_to(target: str | None, folder: Path) -> Iterator[list[Reader]]:
    """The readers that send a run to a collector: one, or none where none is named."""
    if target is None:
        yield []
        return
    from hocket.results.telemetry import Telemetry, parse_target

    address = parse_target(target)
    with contextlib.closing(Telemetry(address, folder.name)) as telemetry:
        yield [telemetry]
    if telemetry.failed:
        sys.stderr.write(
            f"note: {telemetry.failed} sendings of telemetry failed; does a collector listen at "
            f"{address}?\n"
        )
