"""A run as OpenTelemetry spans and metrics, sent to a collector over OTLP (HTTP).

    run ─┬─ episode (each attempt) ─┬─ chunk      from its delivery until it was executed
         │                          ├─ stall      a lane that waited for a second or longer
         │                          └─ video      from the episode's end until the file was durable
         └─ inference               one `infer`, linked to the attempts of its rows

Every span below the run says of which trial and attempt it is. Nothing else of hocket depends on
this: it is a reader, `--reader otlp=URL`, that puts events into a queue, and a thread that turns
them into spans. A collector that is away costs the run nothing, and is told of at the end.
"""

from __future__ import annotations

import queue
import sys
import threading

from hocket.core import plugins
from hocket.core.contracts.recorder import Followed
from hocket.core.events import BatchInferred, Event
from hocket.errors import UsageError

ENDPOINT = "http://localhost:4318"
"""Where collectors listen, unless told otherwise."""
_CLOSE_S = 30.0


def collector_at(address: str) -> str:
    """The collector's address, ENDPOINT where none is given."""
    if address and not address.startswith(("http://", "https://")):
        raise UsageError(f"--reader otlp={address} is no address; write otlp=http://HOST:4318.")
    return address.rstrip("/") or ENDPOINT


class Telemetry:
    """A reader that sends a run to the collector at an address, ENDPOINT where none is given.
    Closing twice is safe."""

    def __init__(self, address: str, run: Followed) -> None:
        self._address = collector_at(address)
        plugins.require_extra("readers", "otlp")
        from hocket.telemetry.spans import Spans

        self._spans = Spans(self._address, run.folder.name)
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = threading.Thread(
            target=self._work, name="hocket-telemetry", daemon=True
        )
        self._thread.start()

    def on(self, event: Event) -> None:
        if isinstance(event, BatchInferred):
            event = event._replace(observations=None)  # large, where they are kept for training
        self._events.put(event)

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._events.put(None)
            thread.join(_CLOSE_S)
            if self.failed:
                sys.stderr.write(
                    f"note: {self.failed} sendings of telemetry failed; does a collector listen at "
                    f"{self._address}?\n"
                )

    @property
    def failed(self) -> int:
        """Batches of spans or metrics that did not reach the collector."""
        return self._spans.failed

    def _work(self) -> None:
        while (event := self._events.get()) is not None:
            self._spans.hear(event)
        self._spans.close()
