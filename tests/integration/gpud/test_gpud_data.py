"""Data sets and programs of a real gpud: in its hello with digests, noted when they are used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.names import HOST_RUNNER
from remote_gpu.client import Operations, OpFailed
from remote_gpu.wire.uses import USES_VARIABLE
from tests.integration.gpud.conftest import Gpud, relu_model, running_gpud

OPERATIONS = ("noop", "exec", "onnx", "sequence_search")
FASTA = b">a first\nMKV\n>b\nMKVLAA\n>c\nAAAA\n"
MODEL = relu_model()
PROGRAM = Path("/bin/cat")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def _gpud_of_this_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    folder = tmp_path_factory.mktemp("gpud")
    (folder / "small.fasta").write_bytes(FASTA)
    models = folder / "models"
    (models / "inner").mkdir(parents=True)
    (models / "inner" / "b.onnx").write_bytes(MODEL)
    (models / "a.txt").write_bytes(b"text")
    data = {"proteins": folder / "small.fasta", "models": models}
    options = ("--program", f"copy={PROGRAM} -")
    with running_gpud(folder, *options, operations=OPERATIONS, data=data) as gpud:
        yield gpud


@pytest.fixture
def uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a runner, empty."""
    file = tmp_path / "uses"
    file.touch()
    monkeypatch.setenv(USES_VARIABLE, str(file))
    return file


def lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_hello_names_data_and_programs_with_their_digests(shared_gpud: Gpud) -> None:
    listing = f"{sha256(b'text')}  a.txt\n{sha256(MODEL)}  inner/b.onnx\n"
    assert shared_gpud.hello["data"] == {
        "proteins": sha256(FASTA),
        "models": sha256(listing.encode()),
    }
    programs = dict(shared_gpud.hello["programs"])
    assert programs.pop(HOST_RUNNER, "") == ""  # where this machine isolates runs
    assert programs == {"copy": sha256(PROGRAM.read_bytes())}
    known = json.loads((shared_gpud.state / "digests.json").read_text())
    assert len(known) == 4


def test_indexing_is_logged_with_the_number_of_sequences(shared_gpud: Gpud) -> None:
    for message in ("indexing proteins, 3 sequences", "indexed proteins, 3 sequences"):
        (line, *_) = shared_gpud.logged(message)
        assert (line["event"], line["data"], line["sequences"]) == ("indexing", "proteins", 3)


def test_what_a_program_uses_is_noted_once(shared_gpud: Gpud, uses: Path) -> None:
    with shared_gpud.lane() as device:
        for _ in range(2):
            device.op("sequence_search", b">q\nMKVLAA\n", database="proteins", file="q")
            device.op("exec", b"x", program="copy")
            device.op("onnx", bytes(8), model="data:models/inner/b.onnx", inputs=INPUTS)
        device.post("noop", b"")
        device.sync()
        with Operations(device) as operations:
            operations.resource("data", b"mine")
    found = lines(uses)
    assert found.count({"data": {"proteins": sha256(FASTA)}}) == 1
    assert {"programs": {"copy": sha256(PROGRAM.read_bytes())}} in found
    assert {"data": {"models": shared_gpud.hello["data"]["models"]}} in found
    operations_used = {
        line["operation"]: line["implementation"] for line in found if "operation" in line
    }
    assert {"sequence_search", "exec", "onnx"} <= set(operations_used)
    assert operations_used["onnx"].startswith("onnxruntime")
    resource = {"resource": f"sha256:{sha256(b'mine')}", "type": "data", "source": ""}
    assert resource in found
    assert len(found) == len({json.dumps(line) for line in found})


INPUTS = [{"name": "x", "dtype": "float32", "shape": [2]}]


@pytest.mark.parametrize(
    ("operation", "arguments", "lacks"),
    [
        ("sequence_search", {"database": "nr", "file": "q"}, {"data": "nr"}),
        ("onnx", {"model": "data:nr/x.onnx", "inputs": INPUTS}, {"data": "nr"}),
        ("exec", {"program": "blast"}, {"programs": "blast"}),
    ],
)
def test_an_absent_name_is_a_typed_error_that_the_runner_sees(
    shared_gpud: Gpud,
    uses: Path,
    operation: str,
    arguments: dict[str, Any],
    lacks: dict[str, str],
) -> None:
    with shared_gpud.lane() as device:
        with pytest.raises(OpFailed, match="ENOENT") as caught:
            device.op(operation, b">q\nMKV\n" if operation != "onnx" else bytes(8), **arguments)
        assert caught.value.lacks == lacks
        with pytest.raises(OpFailed) as other:
            device.op("none")
        assert not other.value.lacks  # an unknown operation is another matter
    assert lines(uses) == [{"lacks": lacks}]


def test_without_a_runner_nothing_is_written(
    shared_gpud: Gpud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(USES_VARIABLE, str(tmp_path / "gone"))  # nor an error, when it is gone
    with shared_gpud.lane() as device:
        assert device.op("exec", b"x", program="copy").values == {"status": 0}
    assert list(tmp_path.iterdir()) == []
