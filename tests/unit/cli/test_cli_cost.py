"""The cost of a job: the paper's own figures come out of its formula."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchgpu.report.cost import Comparison, device_seconds
from tests.commandline import run
from tests.history_records import job_lease, share

PAPER = Comparison(cpu_s=368.0, gpu_s=118.0, memory_mib=3072)
seconds = st.floats(0.001, 1e6)


def test_the_papers_figures() -> None:
    assert PAPER.cpu_usd == pytest.approx(0.0184, abs=5e-6)
    assert PAPER.gpu_usd() == pytest.approx(0.0354, abs=5e-6)
    assert PAPER.speed_up == pytest.approx(3.12, abs=5e-3)
    assert PAPER.gpu_usd() / PAPER.cpu_usd == pytest.approx(1.92, abs=5e-3)
    assert PAPER.break_even_speed_up() == pytest.approx(6.0, abs=1e-4)
    assert PAPER.break_even_sharers == pytest.approx(2.36, abs=5e-3)
    assert PAPER.gpu_usd(2) > PAPER.cpu_usd > PAPER.gpu_usd(3)


@given(cpu_s=seconds, gpu_s=seconds, memory_mib=st.integers(128, 10240))
def test_at_break_even_both_cost_the_same(cpu_s: float, gpu_s: float, memory_mib: int) -> None:
    compared = Comparison(cpu_s=cpu_s, gpu_s=gpu_s, memory_mib=memory_mib)
    sharers = compared.break_even_sharers
    if sharers is None:
        assert compared.gpu_usd(1e9) >= compared.cpu_usd
    else:
        assert compared.gpu_usd(sharers) == pytest.approx(compared.cpu_usd, rel=1e-4)
        assert compared.break_even_speed_up(sharers) == pytest.approx(compared.speed_up, rel=1e-4)


def test_the_command_prints_both_and_names_its_prices(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", "--cpu-s", "368", "--gpu-s", "118"]) == 0
    shown = capsys.readouterr().out
    assert "pays off from 2.36 sharers" in shown
    assert "prices (2021)" in shown
    arguments = ["cost", "--cpu-s", "1", "--gpu-s", "2", "--device-usd-per-hour", "3", "--json"]
    assert run(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["version"], said["break_even_sharers"]) == (1, None)
    assert said["prices"]["as_of"] == "given"


def test_an_instance_type_has_a_dated_list_price(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["cost", "--cpu-s", "10", "--gpu-s", "2", "--instance-type"]
    assert run([*arguments, "g5.xlarge", "--json"]) == 0
    prices = json.loads(capsys.readouterr().out)["prices"]
    assert (prices["device_usd_per_hour"], prices["as_of"]) == (1.006, "2025-06, us-east-1")
    assert run([*arguments, "p9.xlarge"]) == 2
    assert "g4dn.xlarge" in capsys.readouterr().err
    assert run([*arguments, "g5.xlarge", "--device-usd-per-hour", "1"]) == 2


WHOLE: dict[str, Any] = {"exclusive": True, "compute_guarantee_pct": 0}


@pytest.mark.parametrize(
    ("of_share", "of_lease", "device_s"),
    [
        (WHOLE, {}, 10.0),
        ({"compute_guarantee_pct": 25}, {}, 2.5),
        ({"compute_guarantee_pct": 0}, {}, 10.0),
        (WHOLE, {"ahead": True, "booked_s": 104.0}, 6.0),
        (WHOLE, {"share_count": 3}, 30.0),
        (WHOLE, {"freed_s": None}, 0.0),
        (WHOLE, {"shares": ()}, 0.0),
    ],
)
def test_device_seconds_of_a_lease(
    of_share: dict[str, Any], of_lease: dict[str, Any], device_s: float
) -> None:
    fields = {"shares": (share(**of_share),), **of_lease}
    assert device_seconds([job_lease("j", 100.0, 110.0, **fields)]) == pytest.approx(device_s)


@pytest.mark.parametrize(
    "arguments", [["--cpu-s", "1"], ["--gpu-s", "1"], ["--cpu-s", "0", "--gpu-s", "1"]]
)
def test_a_comparison_needs_both_times(arguments: list[str]) -> None:
    assert run(["cost", *arguments]) == 2
