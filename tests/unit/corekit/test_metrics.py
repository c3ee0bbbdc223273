"""The catalogue of metrics, their text, and its page."""

from __future__ import annotations

import asyncio
import re

import aiohttp
import pytest

from corekit.aio.metrics_endpoint import metrics_endpoint
from corekit.errors import AppError, ErrorCode
from corekit.metrics.catalogue import BY_PROGRAM
from corekit.metrics.exposition import CONTENT_TYPE, Observations, family, histogram, single
from corekit.metrics.metric import Kind, Label, Metric
from tools import metrics_table

ALL = [metric for metrics in BY_PROGRAM.values() for metric in metrics]
TIMES = Metric("t_seconds", Kind.HISTOGRAM, "Times", (Label("f", "few"),), buckets=(0.1, 1.0))


def test_every_name_is_defined_once_and_bounded() -> None:
    names = [series for metric in ALL for series in metric.series]
    assert len(names) == len(set(names))
    assert all(label.bound for metric in ALL for label in metric.labels)
    assert all(metric.help for metric in ALL)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_a_name_shows_type_and_unit(metric: Metric) -> None:
    assert re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", metric.name)
    assert all(re.fullmatch("[a-zA-Z_]+", name) for name in metric.label_names)
    assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
    if metric.unit == "s":
        assert "_seconds" in metric.name
    assert bool(metric.buckets) is (metric.kind is Kind.HISTOGRAM)


def test_the_page_has_every_metric() -> None:
    page = metrics_table.PAGE.read_text(encoding="utf-8")
    assert metrics_table.renewed(page) == page, "run python -m tools.metrics_table"


def test_labels_are_escaped() -> None:
    metric = Metric("m", Kind.GAUGE, "A metric", (Label("a", "few"), Label("b", "few")))
    lines = list(family(metric, [(("plain", 'q"\\\n'), 1.5)]))
    assert lines == [
        "# HELP m A metric",
        "# TYPE m gauge",
        r'm{a="plain",b="q\"\\\n"} 1.5',
    ]


def test_a_sample_has_all_labels() -> None:
    metric = Metric("m", Kind.GAUGE, "A metric", (Label("a", "few"),))
    with pytest.raises(ValueError, match="shorter"):
        list(family(metric, [((), 1)]))


def test_buckets_are_cumulative_and_include_their_bound() -> None:
    seen = Observations(TIMES.buckets)
    for value in (0.1, 0.2, 1.0, 5.0):
        seen.observe(value)
    assert list(histogram(TIMES, [(("x",), seen)]))[2:] == [
        't_seconds_bucket{f="x",le="0.1"} 1',
        't_seconds_bucket{f="x",le="1.0"} 3',
        't_seconds_bucket{f="x",le="+Inf"} 4',
        f't_seconds_sum{{f="x"}} {seen.total}',
        't_seconds_count{f="x"} 4',
    ]


UP = Metric("up", Kind.GAUGE, "Up")


async def _get(address: str, path: str, **headers: str) -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}{path}", headers=headers) as answer,
    ):
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def _scrapes() -> None:
    async with metrics_endpoint("127.0.0.1:0", lambda: single(UP, 1)) as fields:
        address = fields["metrics"]
        text = "# HELP up Up\n# TYPE up gauge\nup 1\n"
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
