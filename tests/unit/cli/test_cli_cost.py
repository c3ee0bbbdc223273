"""The cost of a job: the paper's own figures come out of its formula."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchgpu.report.cost import Comparison
from tests.commandline import run

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


@pytest.mark.parametrize(
    "arguments", [["--cpu-s", "1"], ["--gpu-s", "1"], ["--cpu-s", "0", "--gpu-s", "1"]]
)
def test_a_comparison_needs_both_times(arguments: list[str]) -> None:
    assert run(["cost", *arguments]) == 2
