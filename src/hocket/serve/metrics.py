"""What a server tells of itself, as Prometheus text."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator

BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUANTILES = (0.5, 0.9, 0.99)
WINDOW = 2048
"""Latest requests that latency quantiles are taken over."""


class Metrics:
    """Counters of the event loop, for `/metrics`."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._latencies: deque[float] = deque(maxlen=WINDOW)
        self._batches: Counter[int] = Counter()
        self.requests = 0
        self.rows = 0
        self.errors: Counter[str] = Counter()
        self.clients: Counter[str] = Counter()
        """Replies by the name of a client's key."""
        self.connections = 0
        self.connections_total = 0
        self.queue_depth = 0
        self.latency_sum_s = 0.0
        self.busy_s = 0.0
        """Seconds of inference, over all that run at once."""
        self.concurrency = 1

    def answered(self, rows: int, seconds: float) -> None:
        """Count a request that was answered, `seconds` after it came."""
        self.requests += 1
        self.rows += rows
        self.latency_sum_s += seconds
        self._latencies.append(seconds)

    def inferred(self, size: int, seconds: float) -> None:
        self._batches[size] += 1
        self.busy_s += seconds

    def text(self) -> str:
        """All of it, in Prometheus' text format."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        up_s = time.perf_counter() - self._started
        yield from _one("requests_total", "counter", "Requests answered.", self.requests)
        yield from _one("rows_total", "counter", "Observations answered.", self.rows)
        text = "Requests that ended in an error, by kind."
        yield from _by("errors_total", text, "kind", self.errors)
        yield from _by("client_requests_total", "Replies, by key.", "client", self.clients)
        yield from _one("connections", "gauge", "Open connections.", self.connections)
        yield from _one(
            "connections_total", "counter", "Connections ever opened.", self.connections_total
        )
        yield from _one("queue_depth", "gauge", "Observations that wait.", self.queue_depth)
        busy = self.busy_s / (up_s * self.concurrency) if up_s else 0.0
        yield from _one("busy_ratio", "gauge", "Share of the time that the policy worked.", busy)
        yield from _one("busy_seconds_total", "counter", "Seconds of inference.", self.busy_s)
        yield "# HELP hocket_batch_size Observations in a batch."
        yield "# TYPE hocket_batch_size histogram"
        for limit in BATCH_BUCKETS:
            count = sum(n for size, n in self._batches.items() if size <= limit)
            yield f'hocket_batch_size_bucket{{le="{limit}"}} {count}'
        yield f'hocket_batch_size_bucket{{le="+Inf"}} {self._batches.total()}'
        yield f"hocket_batch_size_sum {sum(size * n for size, n in self._batches.items())}"
        yield f"hocket_batch_size_count {self._batches.total()}"
        yield "# HELP hocket_request_seconds From request to reply, over the latest requests."
        yield "# TYPE hocket_request_seconds summary"
        ordered = sorted(self._latencies)
        for share in QUANTILES if ordered else ():
            value = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
            yield f'hocket_request_seconds{{quantile="{share}"}} {value:.6f}'
        yield f"hocket_request_seconds_sum {self.latency_sum_s:.6f}"
        yield f"hocket_request_seconds_count {self.requests}"


def _escaped(text: str) -> str:
    """Text as it may stand between the quotes of a label."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _by(name: str, text: str, label: str, counts: Counter[str]) -> Iterator[str]:
    yield f"# HELP hocket_{name} {text}"
    yield f"# TYPE hocket_{name} counter"
    for value, count in sorted(counts.items()):
        yield f'hocket_{name}{{{label}="{_escaped(value)}"}} {count}'


def _one(name: str, kind: str, text: str, value: float) -> Iterator[str]:
    yield f"# HELP hocket_{name} {text}"
    yield f"# TYPE hocket_{name} {kind}"
    yield f"hocket_{name} {value:.10g}"
