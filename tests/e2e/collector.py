"""A collector: an HTTP server that accepts OTLP/HTTP and keeps the spans that programs send."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Seen:
    """One span as it was received."""

    name: str
    service: str
    trace: str
    span: str
    parent: str
    start_s: float
    end_s: float
    attributes: dict[str, str]
    failed: bool


@dataclass
class Collector:
    """The spans that arrived so far."""

    endpoint: str = ""
    spans: list[Seen] = field(default_factory=list)

    def of_job(self, job: str) -> list[Seen]:
        """All spans of the trace that has the job's root span; empty until that arrived."""
        roots = [
            span
            for span in list(self.spans)
            if span.name == "job" and span.attributes.get("orchgpu.job") == job
        ]
        return [span for span in list(self.spans) if roots and span.trace == roots[0].trace]

    async def receive(self, request: web.Request) -> web.Response:
        """`POST /v1/traces`."""
        assert request.content_type == "application/x-protobuf"
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        self.keep(ExportTraceServiceRequest.FromString(body))
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")

    def keep(self, message: ExportTraceServiceRequest) -> None:
        """Keep the spans of one export."""
        for group in message.resource_spans:
            service = next(
                a.value.string_value for a in group.resource.attributes if a.key == "service.name"
            )
            for scope in group.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Seen(
                            name=span.name,
                            service=service,
                            trace=span.trace_id.hex(),
                            span=span.span_id.hex(),
                            parent=span.parent_span_id.hex(),
                            start_s=span.start_time_unix_nano / 1e9,
                            end_s=span.end_time_unix_nano / 1e9,
                            attributes={a.key: a.value.string_value for a in span.attributes},
                            failed=span.status.code == span.status.STATUS_CODE_ERROR,
                        )
                    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on loopback for the length of the block, in a thread of its own."""
    collector, ready = Collector(), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v1/traces", collector.receive)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        collector.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name="collector")
    thread.start()
    assert ready.wait(30)
    try:
        yield collector
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
