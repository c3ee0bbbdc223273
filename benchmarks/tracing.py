"""The cost of traces for a job.

    on_ratio              processor time of a job with OpenTelemetry's SDK / without traces
    spans_per_job         spans of one job that the orchestrator records

Jobs run in the simulation without faults: the real orchestrator, with the scheduler's core and the
model of the cloud in the same process. Rounds with and without traces take turns; the medians are
compared. The exporter drops what it gets, as sending is another thread's time.

    python -m benchmarks.tracing [--json] [--jobs N] [--rounds N]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from benchmarks import report
from corekit.tracing.opentelemetry import OpenTelemetryTracer
from corekit.tracing.span import Tracer
from simulator.faults.scenario import Scenario
from simulator.faults.seeds import simulate


class Dropped(SpanExporter):
    """Counts what it gets."""

    def __init__(self) -> None:
        self.spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += len(spans)
        return SpanExportResult.SUCCESS


def processor_s(jobs: int, tracer: Tracer | None) -> float:
    """The processor time of one job."""
    began_s = time.process_time()
    verdict = simulate(1, Scenario(jobs=jobs, upload_pause_s_max=0.5), tracer)
    assert verdict.outcomes == {"SUCCEEDED": jobs}
    return (time.process_time() - began_s) / jobs


def measured(jobs: int, rounds: int) -> list[report.Figure]:
    """The figures of rounds in turns."""
    exporter, off, on = Dropped(), [], []
    for _ in range(rounds):
        off.append(processor_s(jobs, None))
        tracer = OpenTelemetryTracer("benchmark", {}, exporter)
        on.append(processor_s(jobs, tracer))
        tracer.close()
    job_s, traced_s = statistics.median(off), statistics.median(on)
    return [
        report.Figure(
            "on_ratio", traced_s / job_s, "ratio", "processor time of a job, ms", job_s * 1000
        ),
        report.Figure("spans_per_job", exporter.spans / jobs / rounds, "spans"),
    ]


def main() -> None:
    """Measure and show."""
    parser = report.arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    report.show("tracing", measured(options.jobs, options.rounds), as_json=options.json)


if __name__ == "__main__":
    main()
