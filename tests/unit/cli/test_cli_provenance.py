"""The provenance of a job: for people, as JSON, as an RO-Crate that keeps the rules of 1.1."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.errors import AppError, ErrorCode
from lambda_functions.gpu_runner.provenance import merged
from orchgpu.cli.jobs.provenance import echo_provenance, write_ro_crate
from orchgpu.core.provenance import HIDDEN, parameters_of
from orchgpu.jobs.ro_crate import METADATA_NAME, PROFILE, ro_crate
from tests.unit.cli.test_cli_job import known, result

KNOWN: dict[str, Any] = {
    "function": {"name": "search", "revision": "ab12", "package_sha256": "c0de"},
    "input": {
        "bucket": "in",
        "key": "a b/q 1.fa",
        "version": "v1",
        "etag": "e",
        "size": 5,
        "sha256": "5e",
    },
    "tenant": "lab",
    "parameters": {"TOP": "10", "A/B": "x"},
    "devices": [{"host": "gpu-a", "kind": "cuda", "model": "Tesla K80", "driver": "550.54"}],
    "operations": [{"name": "sequence_search", "implementation": "pyopal 0.7"}],
    "data": {"proteins": "da7a"},
    "programs": {"blast": ""},
    "resources": [{"type": "model", "sha256": "30de1", "source": "m.onnx"}],
    "versions": {"orchgpu": "0.1.0", "runner": "0.1.0", "python": "3.12.1"},
}
FILES = [{"bucket": "out", "key": "q.tsv", "size": 3, "sha256": "ab"}]


def references(value: Any) -> Iterator[str]:
    """The targets of all references below a value: objects with `@id` alone."""
    if isinstance(value, dict):
        if set(value) == {"@id"}:
            yield value["@id"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def check(crate: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rules of RO-Crate 1.1 about structure, and those of Process Run Crate 0.5; by @id."""
    assert set(crate) == {"@context", "@graph"}
    context = crate["@context"]
    assert "https://w3id.org/ro/crate/1.1/context" in context
    graph = crate["@graph"]
    by_id = {entity["@id"]: entity for entity in graph}
    assert len(by_id) == len(graph), "an @id occurs once"
    for entity in graph:
        assert isinstance(entity["@type"], str)
        for name, value in entity.items():  # a flat graph: nested objects are references
            for one in value if isinstance(value, list) else [value]:
                assert not isinstance(one, dict) or set(one) == {"@id"}, (entity["@id"], name)
    external = {"https://w3id.org/ro/crate/1.1"}
    assert set(references(graph)) <= set(by_id) | external, "all references resolve"
    descriptor = by_id["ro-crate-metadata.json"]
    assert descriptor["@type"] == "CreativeWork"
    assert descriptor["about"] == {"@id": "./"}
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    root = by_id["./"]
    assert root["@type"] == "Dataset"
    assert datetime.fromisoformat(root["datePublished"]).tzinfo is not None
    assert root["name"]
    assert root["description"]
    parts = {part["@id"] for part in root["hasPart"]}
    assert parts == {e["@id"] for e in graph if e["@type"] == "File"}, "data entities are parts"
    for part in parts:
        assert re.fullmatch(r"[a-z][a-z0-9+.-]*://[\x21-\x7e]+", part), "an absolute URI"
    for local in set(by_id) - parts - {"./", "ro-crate-metadata.json", PROFILE}:
        assert re.fullmatch(r"#[\x21-\x7e]+", local), "an identifier of this document"
    assert root["conformsTo"] == {"@id": PROFILE}
    (action,) = [entity for entity in graph if entity["@type"] == "CreateAction"]
    assert root["mentions"] == [{"@id": action["@id"]}]
    assert by_id[action["instrument"]["@id"]]["@type"] == "SoftwareApplication"
    assert datetime.fromisoformat(action["endTime"])
    assert by_id[action["agent"]["@id"]]["@type"] in ("Person", "Organization")
    terms = {k: v for one in context if isinstance(one, dict) for k, v in one.items()}
    assert "sha256" in terms, "the context of 1.1 does not know it"
    return by_id


def test_a_crate_has_input_outputs_parameters_data_and_software() -> None:
    by_id = check(ro_crate(result(provenance=KNOWN, files=FILES), None))
    action = by_id["#j1"]
    objects = {one["@id"] for one in action["object"]}
    source = "s3://in/a%20b/q%201.fa"
    assert objects == {
        source,
        "#parameter-TOP",
        "#parameter-A%2FB",
        "#data-proteins",
        "#content-30de1",
    }
    assert action["result"] == [{"@id": "s3://out/q.tsv"}]
    assert action["actionStatus"] == "http://schema.org/CompletedActionStatus"
    assert "error" not in action
    assert by_id[source] | {"sha256": "5e", "contentSize": "5", "version": "v1"} == by_id[source]
    assert by_id["s3://out/q.tsv"]["sha256"] == "ab"
    assert by_id["#data-proteins"]["sha256"] == "da7a"
    program = by_id["#function-search"]
    assert (program["version"], program["sha256"]) == ("ab12", "c0de")
    needs = {by_id[one["@id"]]["name"] for one in program["softwareRequirements"]}
    assert needs == {"sequence_search", "blast", "orchgpu", "runner", "python"}
    device = by_id[action["location"][0]["@id"]]
    values = {
        by_id[one["@id"]]["name"]: by_id[one["@id"]]["value"]
        for one in device["additionalProperty"]
    }
    assert values == KNOWN["devices"][0]
    assert by_id[action["agent"]["@id"]]["name"] == "lab"


def test_a_failed_job_has_a_crate_with_its_error() -> None:
    failed = result(state="FAILED", reason="KILLED", detail="signal 9", files=[], provenance=KNOWN)
    action = check(ro_crate(failed, None))["#j1"]
    assert action["actionStatus"] == "http://schema.org/FailedActionStatus"
    assert action["error"] == "KILLED: signal 9"
    assert action["result"] == []


_TEXT = st.text(max_size=20)
_VALUE: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from([*KNOWN, "of a newer version"]), _VALUE),
    st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), max_size=3, unique=True),
)
def test_any_provenance_makes_a_crate(provenance: Any, files: Any) -> None:
    """A newer version may have other values under these names."""
    made = [{"bucket": "b", "key": key, "size": 1, "sha256": digest} for key, digest in files]
    unique = list({file["key"]: file for file in made}.values())
    crate = ro_crate(result(provenance=provenance, files=unique), "f")
    json.dumps(crate)
    check(crate)


def test_the_command_writes_prints_and_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = known(result=result(provenance=KNOWN, files=FILES))
    write_ro_crate(job, str(tmp_path / "crate"))
    file = tmp_path / "crate" / METADATA_NAME
    assert capsys.readouterr().out == f"{file}\n"
    check(json.loads(file.read_text()))
    write_ro_crate(job, "-")
    assert json.loads(capsys.readouterr().out) == json.loads(file.read_text())
    with pytest.raises(AppError, match="cannot write"):
        write_ro_crate(job, str(file))
    with pytest.raises(AppError, match="has no provenance") as caught:
        write_ro_crate(known(), "-")
    assert caught.value.code is ErrorCode.NOT_FOUND
    with pytest.raises(AppError, match="has no result yet"):
        echo_provenance(known(result=None), as_json=False)


def test_people_and_programs_see_every_fact(capsys: pytest.CaptureFixture[str]) -> None:
    job = known(result=result(provenance={**KNOWN, "newer": {"k": 1}}, files=FILES))
    echo_provenance(job, as_json=False)
    shown = capsys.readouterr().out
    for fact in ("c0de", "da7a", "550.54", "pyopal 0.7", "sequence_search", "m.onnx", "3.12.1"):
        assert fact in shown
    assert "newer" in shown
    assert "s3://out/q.tsv" in shown
    echo_provenance(job, as_json=True)
    found = json.loads(capsys.readouterr().out)["job"]
    assert found["provenance"] == {**KNOWN, "newer": {"k": 1}}
    assert found["outputs"] == FILES


def test_parameters_that_look_like_secrets_are_hidden() -> None:
    given_ = {"TOP": "10", "API_KEY": "k", "X": "AKIA" + "A" * 16, "EMPTY_TOKEN": ""}
    assert parameters_of(given_) == {
        "TOP": "10",
        "API_KEY": HIDDEN,
        "X": HIDDEN,
        "EMPTY_TOKEN": "",
    }


def test_what_the_runner_saw_joins_what_the_orchestrator_knew() -> None:
    first = {"input": {"etag": "e"}, "versions": {"orchgpu": "1"}, "newer": [1]}
    more = {"input": {"sha256": "s"}, "data": {"p": "d"}}
    assert merged(first, more) == {
        "input": {"etag": "e", "sha256": "s"},
        "versions": {"orchgpu": "1"},
        "newer": [1],
        "data": {"p": "d"},
    }
