"""The catalogue of metrics, their text, and its page."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import aiohttp
import pytest

from corekit import metrics
from corekit.aio.metrics_endpoint import metrics_endpoint
from corekit.errors import AppError, ErrorCode
from corekit.metrics import (
    CONTENT_TYPE,
    METRICS,
    Kind,
    Metric,
    Observations,
    family,
    histogram,
    single,
)
from tools import metrics_table

ALL = tuple(METRICS.values())


def test_every_name_is_defined_once_and_bounded() -> None:
    names = [series for metric in ALL for series in metric.series]
    assert len(names) == len(set(names))
    rows = Path(metrics.__file__).with_suffix(".csv").read_text(encoding="utf-8").splitlines()
    assert len(ALL) == sum(not row.startswith(("program|", "labels|")) for row in rows)
    assert all(bound for metric in ALL for bound in metric.labels.values())
    assert all(metric.help for metric in ALL)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_a_name_shows_type_and_unit(metric: Metric) -> None:
    assert re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", metric.name)
    assert all(re.fullmatch("[a-zA-Z_]+", name) for name in metric.labels)
    assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
    assert metric.unit in ("1", "s", "bytes", "MiB", "%", "°C", "W")
    if metric.unit == "s":
        assert "_seconds" in metric.name


def test_the_page_has_every_metric() -> None:
    page = metrics_table.PAGE.read_text(encoding="utf-8")
    assert metrics_table.renewed(page) == page, "run python -m tools.metrics_table"


def test_labels_are_escaped() -> None:
    name = "ssgm_monitor_devices"
    lines = list(family(name, [(("plain", 'q"\\\n'), 1.5)]))
    assert lines == [
        f"# HELP {name} Devices that the probe finds",
        f"# TYPE {name} gauge",
        name + r'{host="plain",health="q\"\\\n"} 1.5',
    ]


def test_a_sample_has_all_labels() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(family("ssgm_monitor_devices", [(("h",), 1)]))


def test_buckets_are_cumulative_and_include_their_bound() -> None:
    name, seen = "orchgpu_job_own_seconds", Observations((0.1, 1.0))
    for value in (0.1, 0.2, 1.0, 5.0):
        seen.observe(value)
    assert list(histogram(name, [(("x",), seen)]))[2:] == [
        f'{name}_bucket{{function="x",le="0.1"}} 1',
        f'{name}_bucket{{function="x",le="1.0"}} 3',
        f'{name}_bucket{{function="x",le="+Inf"}} 4',
        f'{name}_sum{{function="x"}} {seen.total}',
        f'{name}_count{{function="x"}} 4',
    ]


async def _get(address: str, path: str, **headers: str) -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}{path}", headers=headers) as answer,
    ):
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def _scrapes() -> None:
    async with metrics_endpoint("127.0.0.1:0", lambda: single("ssgmd_leader", 1)) as fields:
        address = fields["metrics"]
        text = "\n".join(single("ssgmd_leader", 1)) + "\n"
        assert await _get(address, "/metrics") == (200, CONTENT_TYPE, text)
        assert (await _get(address, "/healthz"))[0] == 200
        for path in ("/metrics", "/healthz"):
            assert (await _get(address, path, Origin="https://evil.example"))[0] == 403
        with pytest.raises(AppError, match=address) as raised:
            async with metrics_endpoint(address, lambda: ()):
                raise AssertionError("two programs cannot have one port")
        assert raised.value.code is ErrorCode.UNAVAILABLE
    async with metrics_endpoint(None, lambda: ()) as none:
        assert none == {}


def test_an_endpoint_serves_scrapes_of_this_machine() -> None:
    asyncio.run(_scrapes())
