"""Spans and metrics made of a run's events, and their way to a collector."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, Status, StatusCode, set_span_in_context

from hocket.core.data import Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    BatchInferred,
    ChunksExecuted,
    EpisodeFilmed,
    EpisodesEnded,
    EpisodesSealed,
    Event,
    RunEnded,
    RunStarted,
)

STALL_S = 1.0
"""Seconds from which on a lane that waits for its chunk has stalled."""
_EXPORT_S = 5.0
"""Seconds for the collector to answer."""

Key = tuple[Trial, int]
"""A trial and an attempt at it."""


class Spans:
    """Turns events into spans and metrics; used by one thread."""

    def __init__(self, endpoint: str, name: str) -> None:
        # What fails is counted; a log line for each would go through the run's display.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        resource = Resource.create({"service.name": "hocket", "hocket.run": name})
        self._name = name
        self.failed = 0
        spans = OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=_EXPORT_S)
        metrics = OTLPMetricExporter(f"{endpoint}/v1/metrics", timeout=_EXPORT_S)
        for exporter in (spans, metrics):
            self._count_failures(exporter)
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracers.add_span_processor(BatchSpanProcessor(spans))
        reader = PeriodicExportingMetricReader(metrics, export_interval_millis=5000)
        self._meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._tracer = self._tracers.get_tracer("hocket")
        meter = self._meters.get_meter("hocket")
        self._episodes = meter.create_counter("hocket.episodes", unit="{episode}")
        self._steps = meter.create_counter("hocket.env_steps", unit="{step}")
        self._lost = meter.create_counter("hocket.attempts_lost", unit="{attempt}")
        self._batch = meter.create_histogram("hocket.batch_size", unit="{row}")
        self._infer_s = meter.create_histogram("hocket.inference_duration", unit="s")
        self._chunk_s = meter.create_histogram("hocket.chunk_duration", unit="s")
        self._wait_s = meter.create_histogram("hocket.wait_duration", unit="s")
        self._began = time.time()
        self._run: Span | None = None
        self._open: dict[Key, Span] = {}
        """The spans of attempts under way, and of those whose files are not durable."""
        self._ended_at: dict[Key, float] = {}
        self._delivered: dict[tuple[Trial, int, int], float] = {}

    def hear(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._began = time.time()
            told = {"hocket.lanes": event.lanes, "hocket.planned": len(event.trials)}
            self._run = self._span(f"run {self._name}", 0.0, None, told)
        elif isinstance(event, AttemptsBegan):
            for key in zip(event.trials, event.attempts, strict=True):
                self._open[key] = self._span("episode", event.time, self._run, _told(key))
        elif isinstance(event, BatchInferred):
            self._inferred(event)
        elif isinstance(event, ChunksExecuted):
            self._executed(event)
        elif isinstance(event, EpisodesEnded):
            for episode in event.episodes:
                key = (episode.trial, episode.attempt)
                outcome = {"hocket.outcome": episode.outcome.value}
                self._episodes.add(1, {**outcome, "hocket.task": episode.trial.task})
                if (span := self._open.get(key)) is not None:
                    span.set_attributes({**outcome, "hocket.steps": episode.steps})
                    self._ended_at[key] = event.time
        elif isinstance(event, EpisodesSealed):
            for episode in event.episodes:
                key = (episode.trial, episode.attempt)
                films = [file for file in episode.files if file.endswith(".mp4")]
                self._seal(key, event.time, films)
        elif isinstance(event, AttemptFailed):
            self._fail(event)
        elif isinstance(event, EpisodeFilmed):
            self._film(event)
        elif isinstance(event, RunEnded):
            self._end(event.time, complete=event.complete)

    def close(self) -> None:
        """Send what is left."""
        self._end(time.time() - self._began, complete=False)
        self._tracers.shutdown()
        self._meters.shutdown(timeout_millis=_EXPORT_S * 1000)

    # -- one kind of event each ----------------------------------------------------------------

    def _inferred(self, event: BatchInferred) -> None:
        keys = list(zip(event.trials, event.attempts, strict=True))
        links = [Link(self._open[key].get_span_context()) for key in keys if key in self._open]
        told = {
            "hocket.trials": [trial.id for trial in event.trials],
            "hocket.attempts": list(event.attempts),
            "hocket.batch": event.batch,
            "hocket.rows": len(event.lanes),
            "hocket.size": event.size,
        }
        span = self._span("inference", event.began, self._run, told, links)
        span.end(self._at(event.ended))
        self._batch.record(len(event.lanes))
        self._infer_s.record(event.ended - event.began)
        for key, chunk, made, ready, lane in zip(
            keys, event.chunks, event.delivered, event.ready, event.lanes, strict=True
        ):
            if made is None or key not in self._open:
                continue
            self._delivered[(*key, chunk)] = event.time
            waited = event.time - ready
            self._wait_s.record(waited)
            if waited >= STALL_S:
                told = {**_told(key), "hocket.chunk": chunk, "hocket.lane": lane}
                self._span("stall", ready, self._open[key], told).end(self._at(event.time))

    def _executed(self, event: ChunksExecuted) -> None:
        for trial, attempt, chunk, steps, lane in zip(
            event.trials, event.attempts, event.chunks, event.steps, event.lanes, strict=True
        ):
            key = (trial, attempt)
            began = self._delivered.pop((trial, attempt, chunk), None)
            self._steps.add(steps)
            if began is None or key not in self._open:
                continue
            told = {**_told(key), "hocket.chunk": chunk, "hocket.steps": steps}
            span = self._span("chunk", began, self._open[key], {**told, "hocket.lane": lane})
            span.end(self._at(event.time))
            self._chunk_s.record(event.time - began)

    def _seal(self, key: Key, at: float, films: Sequence[str]) -> None:
        span, ended = self._open.pop(key, None), self._ended_at.pop(key, at)
        if span is None:
            return
        for file in films:
            told = {**_told(key), "hocket.file": file}
            self._span("video", ended, span, told).end(self._at(at))
        span.end(self._at(ended))

    def _fail(self, event: AttemptFailed) -> None:
        self._lost.add(1, {"hocket.task": event.trial.task})
        span = self._open.pop((event.trial, event.attempt), None)
        self._ended_at.pop((event.trial, event.attempt), None)
        if span is not None:
            headline = event.error.strip().splitlines()[0] if event.error.strip() else ""
            span.set_attribute("hocket.again", event.again)
            span.set_status(Status(StatusCode.ERROR, headline))
            span.end(self._at(event.time))

    def _film(self, event: EpisodeFilmed) -> None:
        """A video that was made after the run; its episode's span has ended."""
        if event.trial is None:
            return
        told = {"hocket.trial": event.trial.id, "hocket.error": event.error or ""}
        now = time.time() - self._began
        self._span("video", now, self._run, told).end(self._at(now))

    def _end(self, at: float, *, complete: bool) -> None:
        """End what is open. Videos that are made after a run still hang below its span."""
        for span in self._open.values():
            span.end(self._at(at))
        self._open.clear()
        if self._run is not None and self._run.is_recording():
            self._run.set_attribute("hocket.complete", complete)
            self._run.end(self._at(at))

    # -- what OpenTelemetry needs --------------------------------------------------------------

    def _at(self, seconds: float) -> int:
        return int((self._began + seconds) * 1e9)

    def _span(
        self,
        name: str,
        at: float,
        parent: Span | None,
        told: dict[str, Any],
        links: Sequence[Link] = (),
    ) -> Span:
        context = None if parent is None else set_span_in_context(parent)
        return self._tracer.start_span(
            name, context=context, attributes=told, links=links, start_time=self._at(at)
        )

    def _count_failures(self, exporter: Any) -> None:
        export = exporter.export

        def counted(*given: Any, **named: Any) -> Any:
            try:
                result = export(*given, **named)
            except Exception:
                self.failed += 1
                raise
            self.failed += result.name != "SUCCESS"
            return result

        exporter.export = counted


def _told(key: Key) -> dict[str, Any]:
    trial, attempt = key
    return {
        "hocket.trial": trial.id,
        "hocket.attempt": attempt,
        "hocket.suite": trial.suite,
        "hocket.task": trial.task,
        "hocket.seed": trial.seed,
    }
