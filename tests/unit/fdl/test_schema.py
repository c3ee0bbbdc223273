"""The JSON Schema for editors agrees with the readers, as far as a schema can."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fdl.keys.document import json_schema
from fdl.migrate.migrate import migrate
from fdl.schema.schema import Reading
from fdl.text.compose import compose
from fdl.text.render import render

jsonschema_rs = pytest.importorskip("jsonschema_rs")
ROOT = Path(__file__).resolve().parents[3]
GOOD = sorted(
    [
        *(Path(__file__).parent / "shapes").glob("*.yaml"),
        *(ROOT / "fdl" / "examples").glob("*/fdl.yaml"),
    ]
)


@pytest.fixture(scope="module")
def validator() -> Any:
    return jsonschema_rs.validator_for(json_schema())


@pytest.mark.parametrize("path", GOOD, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_good_files_pass(validator: Any, path: Path) -> None:
    composed = compose(path.read_bytes(), path.name)
    root, _ = migrate(composed.root, Reading(source=composed.source))
    value = yaml.safe_load(render(composed, root))
    assert [str(error) for error in validator.iter_errors(value)] == []


def test_gpu_is_defined_once() -> None:
    text = json.dumps(json_schema())
    assert text.count('"on_unavailable"') == 1
    assert text.count('"#/$defs/gpu"') == 2


def test_gpu_of_a_workflow_is_checked_too(validator: Any) -> None:
    functions = "functions: {aws: [{lambda: {name: f}}]}, workflows: {w: {steps: [f], gpu: %s}}"
    assert validator.is_valid(yaml.safe_load("{" + functions % "{count: 1}" + "}"))
    assert validator.is_valid(yaml.safe_load("{" + functions % "none" + "}"))
    assert not validator.is_valid(yaml.safe_load("{" + functions % "{counts: 1}" + "}"))


@pytest.mark.parametrize(
    "block",
    [
        "lambda: {name: f, memmory: 1}",
        "lambda: {name: f, memory: 99999}",
        "lambda: {name: a b}",
        "lambda: {name: f}, gpu: {count: 0}",
        "lambda: {name: f}, gpu: {kinds: [gpu]}",
        "lambda: {name: f}, job: {completion: files}",
        "lambda: {name: f}, gpus: {}",
        "gpu: {}",
        "lambda: {name: f, output: [{suffix: [.a]}]}",
        "lambda: {name: f}, job: {attempts: many}",
    ],
)
def test_bad_files_do_not(validator: Any, block: str) -> None:
    assert not validator.is_valid(yaml.safe_load(f"functions: {{aws: [{{{block}}}]}}"))


@pytest.mark.parametrize(
    "block",
    [
        "gpu: , job: ",
        "gpu: {compute: 25%}",
        "gpu: {memory: 4GiB, max_wait: 10m}",
        "gpu: {min_driver: 550}",
        "job: {input: a-bucket/in, queue: q}",
        "x-mine: {any: [thing]}",
        "iam: {role: ''}",
    ],
)
def test_short_forms_pass(validator: Any, block: str) -> None:
    assert validator.is_valid(
        yaml.safe_load(f"functions: {{aws: [{{lambda: {{name: f}}, {block}}}]}}")
    )
