"""The cost of traces for a job: switched off, and switched on.

    checks_per_job        evaluations of "are traces on" for one job
    off_ratio             the time of these / the processor time of the job
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
import timeit
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from benchmarks import report
from corekit.aio.clock import SystemClock
from corekit.tracing.opentelemetry import OpenTelemetryTracer
from corekit.tracing.span import NoTracer, Tracer
from orchgpu import shell
from orchgpu.job_traces import JobTraces
from simulator.faults.scenario import Scenario
from simulator.faults.world import simulate

#: Evaluations of one attribute that are timed together.
EVALUATIONS = 1_000_000
OFF_RATIO_MAX = 0.001


class Counting(JobTraces):
    """Counts the evaluations of `enabled` of all replicas."""

    evaluations = 0

    def __getattribute__(self, name: str) -> object:
        if name == "enabled":
            Counting.evaluations += 1
        return super().__getattribute__(name)


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


def evaluations(jobs: int) -> float:
    """Evaluations of `enabled` for one job."""
    vars(shell).update(JobTraces=Counting)
    try:
        processor_s(jobs, None)
    finally:
        vars(shell).update(JobTraces=JobTraces)
    return Counting.evaluations / jobs


def evaluation_s() -> float:
    """The time of one evaluation, with its branch not taken."""
    traces = JobTraces(NoTracer(), SystemClock())
    whole = min(
        timeit.repeat("traces.enabled and 1", globals={"traces": traces}, number=EVALUATIONS)
    )
    return whole / EVALUATIONS


def measured(jobs: int, rounds: int) -> list[report.Figure]:
    """The figures of rounds in turns."""
    exporter, off, on = Dropped(), [], []
    for _ in range(rounds):
        off.append(processor_s(jobs, None))
        tracer = OpenTelemetryTracer("benchmark", {}, exporter)
        on.append(processor_s(jobs, tracer))
        tracer.close()
    checks, each_s = evaluations(jobs), evaluation_s()
    job_s, traced_s = statistics.median(off), statistics.median(on)
    off_ratio, words = checks * each_s / job_s, "processor time of a job, ms"
    return [
        report.Figure(metric="checks_per_job", value=checks, unit="checks"),
        report.Figure(
            metric="off_ratio",
            value=off_ratio,
            unit="ratio",
            baseline=words,
            baseline_value=job_s * 1000,
            ratio=off_ratio,
            target=f"<= {OFF_RATIO_MAX}",
            met=off_ratio <= OFF_RATIO_MAX,
        ),
        report.Figure(
            metric="on_ratio",
            value=traced_s / job_s,
            unit="ratio",
            baseline=words,
            baseline_value=job_s * 1000,
            ratio=traced_s / job_s,
        ),
        report.Figure(metric="spans_per_job", value=exporter.spans / jobs / rounds, unit="spans"),
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
