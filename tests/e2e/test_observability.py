"""A system that runs a job, as Prometheus scrapes it and as a collector of traces sees it."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from corekit.metrics import METRICS
from tests.e2e.collector import Collector, Seen, collecting
from tests.e2e.live import DEVICE, FunctionSpec, Live, live_system, until

SAMPLE = re.compile(r"^([a-zA-Z_]\w*)(?:\{([^}]*)\})? (\S+)$")


#: Writes the trace context of the script into an output.
CONTEXT = """with open(os.environ["TMP_OUTPUT_DIR"] + "/context.txt", "w") as file:
    file.write(os.environ["TRACEPARENT"])
"""


#: The orchestrator may finish the job before the runner has closed its session.
ENDS = ("DONE", "RELEASED")


@dataclass
class Observed:
    """A system in which one job has succeeded."""

    live: Live
    job: str
    collector: Collector


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("observed")
    with collecting() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with live_system(folder) as live:
            live.start_all()
            live.deploy({"seen": FunctionSpec(DEVICE + CONTEXT)})
            job = live.upload("seen")
            assert live.result("seen", job).state == "SUCCEEDED"
            live.quiet("seen")
            yield Observed(live, job, collector)


def scrape(live: Live, program: str) -> str:
    ready = live.ready[program]
    address = ready.get("metrics") or str(ready["http"]).removeprefix("http://")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text: str = answer.read().decode()
        return text


def values(text: str, name: str, **labels: str) -> list[float]:
    """The values of the samples of that name with these labels."""
    found = []
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match and match[1] == name:
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            if pairs.items() >= labels.items():
                found.append(float(match[3]))
    return found


def described(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("program", "sections"),
    [
        ("scheduler", ("ssgmd",)),
        ("gpu-a", ("monitor", "gpud")),
        ("orchestrator", ("orchestrator",)),
    ],
)
def test_a_program_exposes_what_the_catalogue_has(
    observed: Observed, program: str, sections: tuple[str, ...]
) -> None:
    text = scrape(observed.live, program)
    of_standbys = {"ssgmd_standby_lag_seconds", "ssgmd_standby_log_item"}
    by_name = {name: metric for name, metric in METRICS.items() if metric.program in sections}
    assert described(text) == set(by_name) - of_standbys
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match is None:
            assert line.startswith("# "), line
            continue
        base = re.sub("_(bucket|sum|count)$", "", match[1])
        metric = by_name.get(match[1]) or by_name[base]
        labels = set(re.findall(r'(\w+)="', match[2] or "")) - {"le"}
        assert labels == set(metric.labels), line


def test_the_job_is_counted_where_it_went(observed: Observed) -> None:
    live = observed.live
    host = next(
        name
        for name in ("gpu-a", "gpu-b")
        if any(values(scrape(live, name), "gpud_lease_ends_total", reason=why) for why in ENDS)
    )
    text = scrape(live, host)
    assert values(text, "ssgm_monitor_registered", host=host) == [1]
    assert values(text, "ssgm_monitor_devices", health="OK") == [1]
    assert values(text, "gpud_leases") == [0]
    assert values(text, "gpud_refused_secrets_total") == [0]
    assert values(scrape(live, "scheduler"), "ssgmd_host_leases", host=host) == [0]
    text = scrape(live, "orchestrator")
    of = {"function": "seen"}
    assert values(text, "orchgpu_messages_received_total", **of)[0] >= 1
    assert values(text, "orchgpu_attempts_total", **of, reason="GRANTED") == [1]
    ended = {"outcome": "SUCCEEDED", "reason": "NONE"}
    assert values(text, "orchgpu_jobs_finished_total", **of, **ended) == [1]
    assert values(text, "orchgpu_job_own_seconds_count", **of) == [1]
    assert values(text, "orchgpu_job_own_seconds_sum", **of)[0] > 0
    assert values(text, "orchgpu_scheduler_connected") == [1]


def test_the_queues_are_measured(observed: Observed) -> None:
    def measured() -> bool:
        text = scrape(observed.live, "orchestrator")
        queues = ("jobs", "completion", "dead_letters")
        return all(
            values(text, "orchgpu_backlog_messages", function="seen", queue=queue) == [0]
            for queue in queues
        )

    until("the backlog of every queue", measured)


PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/traces.md"
ROW = re.compile(r"^\| `([\w.]+)` \| ([\w-]+) \| (.*?) \| .* \| (yes|no).* \|$", re.MULTILINE)
#: Programs by the word of the page.
SERVICES = {"orchestrator": "orchgpu-orchestrator", "ssgmd": "ssgmd", "gpud": "gpud"}
#: Wall clocks of one machine, through floating point.
EXACT_S = 1e-5


def documented() -> dict[str, tuple[str, str, bool]]:
    """Span → service, parent ("" = none), ends within it; from the page."""
    found = {}
    for name, service, parent, within in ROW.findall(PAGE.read_text()):
        above = parent.strip("`") if parent.startswith("`") else ""
        found[name] = (SERVICES[service], above, within == "yes")
    return found


def traced(observed: Observed, job: str, absent: tuple[str, ...] = ()) -> dict[str, Seen]:
    """The spans of a job by name, once all have arrived."""
    expected = set(documented()) - set(absent)

    def arrived() -> dict[str, Seen] | None:
        spans = {span.name: span for span in observed.collector.of_job(job)}
        return spans if set(spans) >= expected else None

    spans = until("the spans of the job", arrived)
    assert set(spans) == expected
    return spans


def test_one_job_is_one_trace_with_every_documented_span(observed: Observed) -> None:
    spans = traced(observed, observed.job)
    table = documented()
    assert len(table) == 14
    assert len(observed.collector.of_job(observed.job)) == len(spans), "each span once"
    assert len({span.trace for span in spans.values()}) == 1
    for name, (service, above, within) in table.items():
        span = spans[name]
        assert span.service == service, name
        assert span.parent == (spans[above].span if above else ""), name
        assert span.start_s <= span.end_s, name
        assert not span.failed, name
        if above:
            parent = spans[above]
            assert parent.start_s - EXACT_S <= span.start_s, name
            assert not within or span.end_s <= parent.end_s + EXACT_S, name
    assert spans["job"].attributes["orchgpu.outcome"] == "SUCCEEDED"
    assert spans["gateway.session"].attributes["orchgpu.reason"] in ENDS


def test_the_script_finds_the_context_of_its_function(observed: Observed) -> None:
    spans = traced(observed, observed.job)
    s3 = observed.live.client("s3")
    body = s3.get_object(Bucket="seen-out", Key="context.txt")["Body"].read().decode()
    assert body == f"00-{spans['job'].trace}-{spans['function'].span}-01"


def test_a_failure_is_seen_in_its_trace(observed: Observed) -> None:
    live = observed.live
    live.deploy({"broken": FunctionSpec("#!/bin/sh\nexit 3\n", job={"attempts": 1})})
    job = live.upload("broken")
    assert live.result("broken", job).state == "FAILED"
    absent = ("worker", "worker.start", "function.outputs")  # no lane, no outputs
    spans = traced(observed, job, absent)
    failed = {name for name, span in spans.items() if span.failed}
    assert {"job", "attempt", "function"} <= failed
    assert spans["job"].attributes["orchgpu.reason"] == "EXIT_NONZERO"
