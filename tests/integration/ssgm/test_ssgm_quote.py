"""`ssgm quote` against a real ssgmd: a file, options, refusals, exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.ssgm.conftest import Lab

FILE = """\
slo: {latency_s: 60}
steps:
- {name: read, request: {count: 0}, way_s: 2}
- name: label
  after: [read]
  request: {advisory: true, memory_mib: 100}
  times: {"*": {execution_s: 5}}
  usd_per_s: {"*": 0.5}
"""


@pytest.fixture
def promising(lab: Lab) -> Iterator[Lab]:
    lab.json("set", "policy", "slo")
    yield lab
    lab.json("set", "policy", "default")


def test_a_run_of_a_file_is_quoted_and_nothing_is_booked(promising: Lab, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(FILE)
    found = promising.json("quote", str(path))
    assert (found["outcome"], found["end_in_s"]) == ("granted", 7.0)
    assert found["estimates"][-1] == {"quantile": 0.95, "end_in_s": 7.0, "cost_usd": 2.5}
    assert found["critical"] == ["read", "label"]
    text = promising.ssgm("quote", str(path)).stdout
    assert "95 % of such runs end within 7 s, $2.5" in text
    assert "the end depends on: read → label" in text
    refused = promising.json("quote", str(path), "--latency", "6s", status=7)
    assert [one["latency_s"] for one in refused["frontier"]] == [7.0]
    assert "LATENCY" in promising.ssgm("quote", str(path), "--latency", "6s").stdout


def test_one_step_of_options_is_quoted(promising: Lab) -> None:
    words = ("quote", "--advisory", "-m", "1GiB")
    assert promising.json(*words, "--execution", "3s")["end_in_s"] == 3.0
    assert "state its times" in promising.json(*words, status=7)["why"]
    assert promising.json(*words, "--execution", "3s", "--latency", "2s", status=7)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("steps: []\n", "a list below it"),
        ("steps: 3\n", "a list below it"),
        ("steps: [{name: a, colour: blue}]\n", "colour"),
        ("steps: [3]\n", "steps"),
        ("{", "not YAML"),
    ],
)
def test_a_wrong_file_is_named(promising: Lab, tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    said = promising.ssgm("quote", str(path))
    assert said.returncode == 2
    assert "run.json" in said.stderr
    assert problem in said.stderr, said.stderr
    assert promising.ssgm("quote", str(path), "-m", "1GiB").returncode == 2
    assert promising.ssgm("quote", str(tmp_path / "none")).returncode == 3


def test_a_file_may_be_json(promising: Lab, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"steps": [{"name": "a", "request": {"count": 0}}]}))
    assert promising.json("quote", str(path))["end_in_s"] == 0.0
