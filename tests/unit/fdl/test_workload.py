"""The derived workload: equal for functions that load the same, another one for anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from corekit.budget import Budget
from fdl.model import Function
from fdl.parse import parse
from fdl.plan.desired import desired
from fdl.plan.functions import workload_of
from fdl.plan.groups import deployed
from fdl.plan.resources import Record
from orchgpu.deploy.package import build
from tests.unit.fdl.definitions import LOCAL

ONE = """\
functions:
  aws:
  - lambda:
      name: one
      init_script: detect.v2.py
      extra_payload: files
      container: {environment: {Variables: {MODEL: small}}}
      input: [{path: one-in}]
    gpu: {kinds: [cpu]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "detect.v2.py").write_text("print(1)")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "model.onnx").write_bytes(b"weights")
    return tmp_path


def function_of(text: str) -> Function:
    return deployed(parse(text, "f.yaml"))[0]


def request_of(text: str, folder: Path) -> dict[str, object]:
    """The request in the record of a deployed function."""
    function = function_of(text)
    made = desired(function, LOCAL, build(function, folder).code, Budget())
    (record,) = [one for one in made.resources if isinstance(one, Record)]
    request = record.body["request"]
    assert isinstance(request, dict)
    return request


def test_a_record_has_the_derived_workload_with_a_label_for_people(folder: Path) -> None:
    workload = request_of(ONE, folder)["workload"]
    assert isinstance(workload, str)
    label, _, digits = workload.rpartition("-")
    assert (label, len(digits)) == ("detect", 12)
    assert request_of(ONE, folder)["workload"] == workload


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: one", "name: two"),
        ("path: one-in", "path: two-in"),
        ("kinds: [cpu]", "kinds: [cuda, cpu], memory: 1GiB, priority: 5"),
        ("init_script", "memory: 1024\n      timeout: 60\n      init_script"),
    ],
)
def test_functions_that_load_the_same_share_a_workload(folder: Path, old: str, new: str) -> None:
    other = ONE.replace(old, new)
    assert other != ONE
    assert request_of(other, folder)["workload"] == request_of(ONE, folder)["workload"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("MODEL: small", "MODEL: large"),
        ("kinds: [cpu]", "kinds: [cpu], warm_key: 'data:other'"),
        ("kinds: [cpu]", "kinds: [cpu], middleware: rcuda"),
        ("{MODEL: small}}", "{MODEL: small}}, image: some/where:1"),
    ],
)
def test_another_configuration_is_another_workload(folder: Path, old: str, new: str) -> None:
    other = ONE.replace(old, new)
    assert other != ONE
    assert request_of(other, folder)["workload"] != request_of(ONE, folder)["workload"]


@pytest.mark.parametrize("file", ["detect.v2.py", "files/model.onnx"])
def test_other_code_or_another_model_is_another_workload(folder: Path, file: str) -> None:
    before = request_of(ONE, folder)["workload"]
    (folder / file).write_bytes(b"changed")
    assert request_of(ONE, folder)["workload"] != before


def test_a_named_workload_stays_and_a_foreign_function_has_none(folder: Path) -> None:
    assert request_of(ONE + "    job: {}\n", folder)["workload"] is not None
    named = ONE.replace("kinds: [cpu]", "workload: resnet50-fp16")
    assert request_of(named, folder)["workload"] == "resnet50-fp16"
    foreign = ONE + "    job: {completion: object, object: 'out/{name}'}\n"
    assert request_of(foreign, folder)["workload"] is None


def test_the_steps_of_a_group_share_one_workload() -> None:
    text = """\
functions:
  aws:
  - group: film
    lambda: {name: a, init_script: a.sh, input: [{path: in-put}], output: [{path: mid-dle}]}
    gpu: {memory: 100}
  - group: film
    lambda: {name: b, init_script: b.sh, input: [{path: mid-dle}], output: [{path: out-put}]}
    gpu: {memory: 100}
"""
    assert workload_of(function_of(text), "abc").startswith("film-")


@pytest.mark.parametrize(
    ("lambda_", "label"),
    [
        ("{name: f, handler: sub.words.hear, input: [{path: in-put}]}", "words"),
        (
            "{name: f, runtime: image, container: {image: 'eu/blast:2'}, input: [{path: in-put}]}",
            "blast",
        ),
    ],
)
def test_the_label_is_of_the_code(lambda_: str, label: str) -> None:
    function = function_of(f"functions:\n  aws:\n  - lambda: {lambda_}\n    gpu: {{}}\n")
    assert workload_of(function, "").rpartition("-")[0] == label
