"""A run as spans and metrics, taken by a stand-in for a collector."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.core.contracts.recorder import Followed
from hocket.errors import UsageError
from hocket.telemetry import Telemetry, collector_at


class Collector(ThreadingHTTPServer):
    """Keeps what is posted to it, by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: dict[str, list[bytes]] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spans(self) -> list[Any]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        taken = [ExportTraceServiceRequest.FromString(b) for b in self.bodies["/v1/traces"]]
        return [
            span
            for request in taken
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> dict[str, Any]:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
            ExportMetricsServiceRequest,
        )

        last = ExportMetricsServiceRequest.FromString(self.bodies["/v1/metrics"][-1])
        return {
            metric.name: metric
            for resource in last.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        import gzip

        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.bodies.setdefault(self.path, []).append(body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def named(name: str) -> Followed:
    return Followed(folder=Path(name), config={})


def told(span: Any) -> dict[str, Any]:
    found = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        if kind == "array_value":
            value = [getattr(one, one.WhichOneof("value")) for one in value.values]
        found[pair.key] = value
    return found


@pytest.mark.slow
def test_a_run_arrives_with_trial_and_attempt_in_every_span(
    collector: Collector, tmp_path: Path
) -> None:
    telemetry = Telemetry(collector.address, named("mine"))
    report = hocket.evaluate(
        env="toy:image",
        policy="scripted",
        episodes=4,
        lanes=2,
        out=tmp_path / "run",
        video="first:1",
        env_config={"raise_at": 5, "fault_seed": 1, "once_file": str(tmp_path / "once")},
        readers=[telemetry],
    )
    telemetry.close()
    telemetry.close()
    assert telemetry.failed == 0
    spans = collector.spans()
    by_name: dict[str, list[Any]] = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span)
    (run,) = by_name["run mine"]
    episodes = by_name["episode"]
    assert len(episodes) == 5  # one attempt was lost
    assert {span.parent_span_id for span in episodes} == {run.span_id}
    outcomes = {
        (told(s)["hocket.trial"], told(s)["hocket.attempt"]): told(s).get("hocket.outcome")
        for s in episodes
    }
    for episode in report.episodes:
        assert outcomes[episode.trial.id, episode.attempt] == episode.outcome.value
    (lost,) = [span for span in episodes if span.status.code == 2]
    assert told(lost)["hocket.seed"] == 1
    ids = {span.span_id for span in episodes}
    chunks = by_name["chunk"]
    assert {span.parent_span_id for span in chunks} <= ids
    assert all({"hocket.trial", "hocket.attempt"} <= told(span).keys() for span in chunks)
    ended = {(e.trial.id, e.attempt) for e in report.episodes}
    stepped = sum(
        told(s)["hocket.steps"]
        for s in chunks
        if (told(s)["hocket.trial"], told(s)["hocket.attempt"]) in ended
    )
    assert stepped == sum(episode.steps for episode in report.episodes)
    for span in by_name["inference"]:
        assert span.parent_span_id == run.span_id
        assert len(told(span)["hocket.trials"]) == told(span)["hocket.rows"] == len(span.links)
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in spans)
    filmed = {told(span)["hocket.trial"] for span in by_name["video"]}
    assert filmed
    assert filmed <= {episode.trial.id for episode in report.episodes}
    metrics = collector.metrics()
    counted = sum(point.as_int for point in metrics["hocket.episodes"].sum.data_points)
    assert counted == 4
    (batches,) = metrics["hocket.batch_size"].histogram.data_points
    assert batches.count == len(by_name["inference"])


@pytest.mark.slow
def test_a_collector_that_is_away_costs_the_run_nothing(tmp_path: Path) -> None:
    telemetry = Telemetry("http://127.0.0.1:9", named("mine"))
    report = hocket.evaluate(env="toy", policy="scripted", episodes=2, readers=[telemetry])
    telemetry.close()
    assert report.complete
    assert telemetry.failed > 0


def test_a_collector_is_named_by_its_address_or_not_at_all() -> None:
    assert collector_at("") == "http://localhost:4318"
    assert collector_at("https://collector:4318/") == "https://collector:4318"
    with pytest.raises(UsageError, match="otlp=http://HOST:4318"):
        Telemetry("collector:4318", named("mine"))
