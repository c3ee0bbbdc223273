"""The metrics of a system that runs a job, as Prometheus scrapes them from every program."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from corekit.metrics.catalogue import (
    BY_PROGRAM,
    STANDBY_ITEM,
    STANDBY_LAG,
)
from tests.e2e.live import DEVICE, FunctionSpec, Live, live_system, until

SAMPLE = re.compile(r"^([a-zA-Z_]\w*)(?:\{([^}]*)\})? (\S+)$")


@dataclass
class Observed:
    """A system in which one job has succeeded."""

    live: Live
    job: str


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    with live_system(tmp_path_factory.mktemp("observed")) as live:
        live.start_all()
        live.deploy({"seen": FunctionSpec(DEVICE)})
        job = live.upload("seen")
        assert live.result("seen", job).state == "SUCCEEDED"
        live.quiet("seen")
        yield Observed(live, job)


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
    of_standbys = {STANDBY_LAG.name, STANDBY_ITEM.name}
    defined = {metric.name for section in sections for metric in BY_PROGRAM[section]} - of_standbys
    assert described(text) == defined
    by_name = {m.name: m for section in sections for m in BY_PROGRAM[section]}
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match is None:
            assert line.startswith("# "), line
            continue
        base = re.sub("_(bucket|sum|count)$", "", match[1])
        metric = by_name.get(match[1]) or by_name[base]
        labels = set(re.findall(r'(\w+)="', match[2] or "")) - {"le"}
        assert labels == set(metric.label_names), line


def test_the_job_is_counted_where_it_went(observed: Observed) -> None:
    live = observed.live
    host = next(
        name
        for name in ("gpu-a", "gpu-b")
        if values(scrape(live, name), "gpud_lease_ends_total", reason="DONE") == [1]
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
