"""The metrics of one orchestrator: counted on the way of a job, and read at each scrape."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from contract.result import SECRET_REFUSED
from contract.states import JobState, Reason
from corekit.aio.clock import Clock
from corekit.metrics import METRICS, Kind, LabelValues, Observations, Sample, family, histogram
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.function import Function
from orchgpu.core.job import Job
from orchgpu.core.promised import Promised, PromiseState
from orchgpu.core.runs.actions import EndRun
from orchgpu.replica.observer import Observer, Performed

logger = logging.getLogger(__name__)

#: The name of a metric with its samples.
Family = tuple[str, Sequence[Sample]]
#: The name of a histogram with its series.
Histogram = tuple[str, Sequence[tuple[LabelValues, Observations]]]
Counts = Counter[LabelValues]

_OWN_TIME = "orchgpu_job_own_seconds"
#: Seconds: upper bounds of the buckets of that histogram.
_OWN_TIME_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass
class OrchestratorMetrics(Observer):
    """The counters of one replica since its start; gauges come from the jobs in hand."""

    clock: Clock
    jobs: Mapping[str, Job]  #: in hand, by id
    connected: bool = False  #: to the scheduler
    functions: Sequence[str] = ()  #: deployed functions
    queues: Mapping[str, str] = field(default_factory=dict)  #: their job queues, by URL
    backlog: dict[LabelValues, int] = field(default_factory=dict)  #: by function and queue
    received: Counts = field(default_factory=Counter)
    finished: Counts = field(default_factory=Counter)
    attempts: Counts = field(default_factory=Counter)
    dead_letters: Counts = field(default_factory=Counter)
    refused_secrets: Counts = field(default_factory=Counter)
    runs: Counts = field(default_factory=Counter)  #: ended, by workflow and state
    promises: Counts = field(default_factory=Counter)  #: ended, by function or workflow and end
    notices: Counts = field(default_factory=Counter)  #: tries, by function or workflow and outcome
    own_time: dict[LabelValues, Observations] = field(default_factory=dict)

    def serves(self, functions: Mapping[str, Function]) -> None:
        """Replace the deployed functions; a backlog that is not measured any more is dropped."""
        self.functions = sorted(functions)
        self.queues = {function.queue_url: name for name, function in functions.items()}
        self.backlog = {key: size for key, size in self.backlog.items() if key[0] in functions}

    def performed(self, done: Performed) -> None:
        job, action, event, _ = done
        if isinstance(event, on.CallFailed):
            return
        if isinstance(action, do.QuarantineMessage) and action.queue_url in self.queues:
            self.dead_letters[(self.queues[action.queue_url],)] += 1
        if job is None:
            return
        function = job.function.name
        if isinstance(action, do.OpenAttempt):
            self._opened(function, event)
        elif isinstance(event, on.AttemptFailureRecorded):
            assert isinstance(action, do.RecordAttemptFailure)
            self._failed(function, action.reason.value, action.detail)
        elif isinstance(event, on.DeadLetterSent):
            self.dead_letters[(function,)] += 1
        elif isinstance(action, do.FinishJob):
            self.finished[(function, action.outcome, action.reason)] += 1
            self._promised(function, job.id, action.promised)
            if action.outcome == JobState.FAILED:  # the last attempt
                self._failed(function, action.reason, action.detail)

    def run_finished(self, action: EndRun) -> None:
        self.runs[action.result.workflow, action.result.state.value] += 1
        self._promised(action.result.workflow, action.run, action.promised)

    def notified(self, name: str, outcome: str) -> None:
        """A try to notify a target of the end of a job or run: delivered, failed or dropped."""
        self.notices[name, outcome] += 1

    def own_time_of(self, function: str, own_s: float) -> None:
        series = self.own_time.get((function,))
        if series is None:
            series = self.own_time[(function,)] = Observations(_OWN_TIME_BOUNDS)
        series.observe(own_s)

    def _opened(self, function: str, event: on.Event | None) -> None:
        if isinstance(event, on.AttemptGranted):
            self.attempts[(function, "GRANTED")] += 1
        elif isinstance(event, on.AttemptWaiting):
            self.attempts[(function, "WAITING")] += 1
        elif isinstance(event, on.AttemptImpossible):
            reason = Reason.BUSY if event.busy else Reason.IMPOSSIBLE
            self.attempts[(function, reason.value)] += 1

    def _promised(self, name: str, of: str, promised: Promised | None) -> None:
        """Count the end of a promise; one that was missed is an event, with its cause."""
        if promised is None:
            return
        self.promises[name, promised.outcome] += 1
        if promised.state is PromiseState.MISSED:
            about = {"event": "promise_missed", "of": of, "function": name, "cause": promised.cause}
            logger.warning("%s of %s: %s", of, name, promised.sentence, extra=about)

    def _failed(self, function: str, reason: str, detail: str) -> None:
        self.attempts[(function, reason)] += 1
        if SECRET_REFUSED in detail:
            self.refused_secrets[(function,)] += 1

    # ------------------------------------------------------------------ a scrape

    def families(self) -> Iterator[Family]:
        """All metrics but the histogram, with their samples."""
        names = [(name,) for name in self.functions]
        yield "orchgpu_backlog_messages", sorted(self.backlog.items())
        yield "orchgpu_oldest_message_age_seconds", self._oldest()
        yield "orchgpu_messages_received_total", _with_zeros(self.received, names)
        in_hand: Counts = Counter((j.function.name, j.state.value) for j in self.jobs.values())
        yield "orchgpu_jobs", sorted(in_hand.items())
        yield "orchgpu_jobs_finished_total", sorted(self.finished.items())
        yield "orchgpu_runs_finished_total", sorted(self.runs.items())
        yield "orchgpu_promises_total", sorted(self.promises.items())
        yield "orchgpu_notices_total", sorted(self.notices.items())
        yield "orchgpu_attempts_total", sorted(self.attempts.items())
        yield "orchgpu_dead_letters_total", _with_zeros(self.dead_letters, names)
        yield "orchgpu_refused_secrets_total", _with_zeros(self.refused_secrets, names)
        yield "orchgpu_scheduler_connected", [((), int(self.connected))]

    def histograms(self) -> Iterator[Histogram]:
        yield _OWN_TIME, sorted(self.own_time.items(), key=lambda one: one[0])

    def lines(self) -> Iterator[str]:
        for name, samples in self.families():
            yield from family(name, samples)
        for name, series in self.histograms():
            yield from histogram(name, series)

    def _oldest(self) -> list[Sample]:
        """The age of each function's oldest message in hand; 0 without one."""
        now_s = self.clock.wall_s()
        ages = dict.fromkeys(self.functions, 0.0)
        for job in self.jobs.values():
            if job.sent_at_s is not None:
                name = job.function.name
                ages[name] = max(ages.get(name, 0.0), round(now_s - job.sent_at_s, 3))
        return [((name,), age_s) for name, age_s in sorted(ages.items())]


def _with_zeros(counts: Counts, names: Sequence[LabelValues]) -> list[Sample]:
    """The samples of a counter, with 0 for names that were never counted: rates need a start."""
    return sorted({**dict.fromkeys(names, 0), **counts}.items())


# ---------------------------------------------------------------------- in the log

#: CloudWatch's names of units; a unit that it lacks is `None` there.
_UNITS = {"1": "Count", "s": "Seconds", "bytes": "Bytes", "%": "Percent"}
#: Labels by name and value: the dimensions of one line.
Dimensions = tuple[tuple[str, str], ...]


class EmbeddedMetrics:
    """CloudWatch's embedded metric format: metrics as JSON in lines of the log.

    Where the log of an orchestrator goes to CloudWatch Logs, CloudWatch makes metrics of these
    lines without a call. Specification:
    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html

    Makes the lines of one program. Counters become what was added since the last lines.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._totals: dict[tuple[str, LabelValues], float] = {}

    def lines(
        self, families: Iterable[Family], histograms: Iterable[Histogram], wall_s: float
    ) -> Iterator[dict[str, object]]:
        """One object for each set of dimensions."""
        found: dict[Dimensions, dict[str, tuple[float, str]]] = {}
        for name, samples in families:
            rises = METRICS[name].kind is Kind.COUNTER
            for labels, value in samples:
                added = self._added(name, labels, value, rises=rises)
                found.setdefault(_dimensions(name, labels), {})[name] = (added, _unit(name))
        for name, series in histograms:
            for labels, seen in series:
                of = found.setdefault(_dimensions(name, labels), {})
                for part, value, unit in (
                    (f"{name}_sum", seen.total, _unit(name)),
                    (f"{name}_count", seen.count, "Count"),
                ):
                    of[part] = (self._added(part, labels, value, rises=True), unit)
        for dimensions, values in sorted(found.items()):
            yield self._line(dimensions, values, wall_s)

    def _added(self, name: str, labels: LabelValues, value: float, *, rises: bool) -> float:
        if not rises:
            return value
        before = self._totals.get((name, labels), 0)
        self._totals[name, labels] = value
        return value - before

    def _line(
        self, dimensions: Dimensions, values: Mapping[str, tuple[float, str]], wall_s: float
    ) -> dict[str, object]:
        definitions = [{"Name": name, "Unit": unit} for name, (_, unit) in values.items()]
        directive = {
            "Namespace": self._namespace,
            "Dimensions": [[name for name, _ in dimensions]],
            "Metrics": definitions,
        }
        about = {"Timestamp": round(wall_s * 1000), "CloudWatchMetrics": [directive]}
        figures = {name: value for name, (value, _) in values.items()}
        return {"_aws": about, **dict(dimensions), **figures}


def _dimensions(name: str, labels: LabelValues) -> Dimensions:
    return tuple(zip(METRICS[name].labels, labels, strict=True))


def _unit(name: str) -> str:
    return _UNITS.get(METRICS[name].unit, "None")
