"""Figures as Prometheus reads them: every family once, labels escaped, GPUs by DCGM's names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from corekit.ids import AttemptId, DeviceId, HostId, LeaseId
from gpu_scheduler.core.state.learned_times import WorkloadOn
from gpu_scheduler.daemon.metrics import (
    WORKLOADS_MAX,
    CoreCounts,
    Metrics,
    Standing,
    prometheus_lines,
)
from gpu_scheduler.model import (
    Device,
    DeviceKind,
    Health,
    HostState,
    Lease,
    LeaseState,
    Request,
    Resident,
    Symptom,
    Usage,
)
from gpu_scheduler.promises import PromisedStep, Slo, StepTimes
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.warm import workload_key
from tests.scheduler_world import device, world_with
from tests.shares import share_of
from tests.unit.gpu_scheduler_daemon.journals import opened

SAMPLE = re.compile(r'([A-Za-z_]+)(?:\{((?:[a-zA-Z]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (\S+)')

RESIDENT = Resident(id="w", workload="workload:1", memory_mib=70, loading_s=1.0)


def view(index: int, kind: DeviceKind, **more: Any) -> answers.DeviceView:
    id_ = DeviceId(f"GPU-{index}")
    device = Device(id=id_, index=index, kind=kind, model='A "B"\\', memory_mib=1000, **more)
    usage = Usage(device=id_, memory_used_mib=300, utilisation_pct=42, temperature_c=41)
    return answers.DeviceView(
        device=device,
        memory_free_mib=400,
        compute_free_pct=100,
        leases=(),
        usage=usage,
        residents=(RESIDENT,) if index == 0 else (),
    )


@pytest.fixture
def text(tmp_path: Path) -> str:
    return told(tmp_path, HostState.UP)


def told(state: Path, host_state: HostState) -> str:
    """The figures of one host with a CUDA device and another, and of one lease."""
    devices = (
        view(0, DeviceKind.CUDA),
        view(1, DeviceKind.CPU, health=Health.BAD, symptoms=(Symptom.ECC,)),
    )
    host = answers.HostView(
        host=HostId("h"),
        state=host_state,
        gateway="h:1",
        incarnation="i",
        silent_s=0.0,
        devices=devices,
        draining=answers.DrainView(reason="SIGTERM") if host_state is HostState.DRAINED else None,
    )
    share = share_of(
        "GPU-0", model="A", memory_mib=600, compute_guarantee_pct=30, compute_limit_pct=80
    )
    lease = Lease(
        id=LeaseId("l"),
        attempt=AttemptId("a"),
        holder=None,
        fence=3,
        state=LeaseState.ACTIVE,
        shares=(share,),
        tenant="lab",
    )
    journal, _ = opened(state)
    counts = CoreCounts()
    counts.learned_times.learn(WorkloadOn("lab", "ocr", "A"), 3.0, 1.0)
    counts.learned_times.learn(WorkloadOn("lab", "ocr", "A"), 3.0, 0.0)
    counts.residents.count_evicted([RESIDENT, RESIDENT])
    counts.residents.loaded_mib = 42
    counts.inventory.hosts_forgotten = 3
    standing = Standing(hosts=(host,), leases=(lease,), waiting=0, counts=counts)
    metrics = Metrics()
    metrics.requests["beat"] += 2
    journal.close()
    return "\n".join(prometheus_lines(metrics, journal, standing))


def test_hosts_that_leave(tmp_path: Path, text: str) -> None:
    assert "ssgmd_hosts_draining 0" in text
    assert "ssgmd_hosts_forgotten_total 3" in text
    assert "ssgmd_hosts_draining 1" in told(tmp_path / "drained", HostState.DRAINED)


def test_every_line_is_a_sample_of_a_family_that_was_described_once(text: str) -> None:
    described: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            described.append(line.split()[2])
        elif not line.startswith("# HELP "):
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            assert sample[1] == described[-1]
            float(sample[3])
    assert len(described) == len(set(described))


def test_gpus_have_the_names_of_dcgm_and_other_kinds_have_not(text: str) -> None:
    labels = 'gpu="0",UUID="GPU-0",device="nvidia0",modelName="A \\"B\\"\\\\",Hostname="h"'
    assert f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 42" in text
    assert f"DCGM_FI_DEV_FB_USED{{{labels}}} 300" in text
    assert f"DCGM_FI_DEV_FB_FREE{{{labels}}} 700" in text
    assert f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 41" in text
    assert "DCGM_FI_DEV_POWER_USAGE{" not in text, "it was not told"
    assert 'UUID="GPU-1"' not in text


@pytest.mark.parametrize(
    ("state", "seen"),
    [(HostState.DRAINED, True), (HostState.STALE, False), (HostState.LOST, False)],
)
def test_the_usage_of_a_silent_host_is_not_exported(
    tmp_path: Path, state: HostState, seen: bool
) -> None:
    assert ('UUID="GPU-0"' in told(tmp_path, state)) is seen


def test_the_allocation_of_leases_and_devices_is_exported(text: str) -> None:
    assert re.search(r'ssgmd_lease_memory_mib\{lease="l",tenant="lab",.*device="GPU-0"\} 600', text)
    assert re.search(r"ssgmd_lease_compute_limit_pct\{.*\} 80", text)
    assert re.search(r'ssgmd_device_memory_free_mib\{host="h",device="GPU-0".*\} 400', text)
    assert re.search(r'ssgmd_device_health\{.*device="GPU-1".*health="BAD"\} 1', text)
    assert re.search(r'ssgmd_device_health\{.*device="GPU-1".*health="OK"\} 0', text)
    assert 'ssgmd_requests_total{op="beat"} 2' in text
    assert 'ssgmd_host_leases{host="h"} 1' in text


def test_warm_workers_are_exported(text: str) -> None:
    key = workload_key("lab", "ocr")
    starts = f'ssgmd_workload_starts_total{{tenant="lab",workload="{key}",start='
    assert '"ocr"' not in text, "every reader may read metrics, but not the names of workloads"
    assert f'{starts}"cold"}} 1' in text
    assert f'{starts}"warm"}} 1' in text
    assert "ssgmd_evictions_total 2" in text
    assert "ssgmd_evicted_mib_total 140" in text
    assert "ssgmd_loaded_mib_total 42" in text
    assert re.search(r'ssgmd_device_residents\{.*device="GPU-0".*\} 1', text)
    assert re.search(r'ssgmd_device_resident_mib\{.*device="GPU-0".*\} 70', text)
    assert re.search(r'ssgmd_device_residents\{.*device="GPU-1".*\} 0', text)


@pytest.mark.parametrize("names", [False, True])
def test_workloads_have_their_names_where_no_keys_are_required(tmp_path: Path, names: bool) -> None:
    counts = CoreCounts()
    counts.learned_times.learn(WorkloadOn("lab", "ocr", "A"), 1.0, 0.5)
    journal, _ = opened(tmp_path)
    journal.close()
    standing = Standing(hosts=(), leases=(), waiting=0, counts=counts, names_workloads=names)
    text = "\n".join(prometheus_lines(Metrics(), journal, standing))
    assert ('tenant="lab",workload="ocr",start="cold"} 1' in text) is names
    assert (workload_key("lab", "ocr") in text) is not names


def test_only_the_workloads_with_the_most_starts_have_counters(tmp_path: Path) -> None:
    counts = CoreCounts()
    for number in range(WORKLOADS_MAX + 5):
        for _ in range(1 + (number >= 5)):
            counts.learned_times.learn(WorkloadOn("t", f"w{number}", "A"), 1.0, 0.5)
    journal, _ = opened(tmp_path)
    journal.close()
    standing = Standing(hosts=(), leases=(), waiting=0, counts=counts)
    lines = list(prometheus_lines(Metrics(), journal, standing))
    assert sum(line.startswith("ssgmd_workload_starts_total{") for line in lines) == (
        2 * WORKLOADS_MAX
    )
    shown = "\n".join(lines)
    assert workload_key("t", f"w{WORKLOADS_MAX}") in shown
    assert workload_key("t", "w0") not in shown


def test_promises_are_counted_at_each_scrape(tmp_path: Path) -> None:
    world = world_with(device("d"), policy="slo")
    journal, _ = opened(tmp_path)
    journal.close()
    counts = CoreCounts.of(world.machine.state)
    step = PromisedStep(name="a", job="a", request=Request(), times={"*": StepTimes(execution_s=1)})
    world.ask(ops.Admit, run="r", steps=(step,), slo=Slo(latency_s=9.0))
    standing = Standing(hosts=(), leases=(), waiting=0, counts=counts)
    lines = list(prometheus_lines(Metrics(), journal, standing))
    assert 'ssgmd_promises_total{outcome="given"} 1' in lines
