"""`device.data(NAME)`: the data beside the device, for the function."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_gpu.client import Local, OpFailed
from remote_gpu.worker.lane import Runner
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from remote_gpu.worker.registry import load_registry


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "labels.txt").write_bytes(b"cat\ndog\n")
    (folder / "a.fasta").write_bytes(b">p\nMKV\n")
    (tmp_path / "outside").write_bytes(b"secret")
    (folder / "link").symlink_to(tmp_path / "outside")
    return folder


@pytest.fixture
def device(weights: Path) -> Iterator[Local]:
    with Local({"weights": weights, "proteins": weights / "a.fasta"}) as local:
        yield local


def test_a_set_is_its_name_with_its_files(device: Local) -> None:
    data = device.data("weights")
    assert data == "weights"
    assert data.files == {"a.fasta": 7, "link": 6, "b/labels.txt": 8}
    assert bytes(data.read("b/labels.txt")) == b"cat\ndog\n"
    assert bytes(data.read("b/labels.txt", offset=4, size=3)) == b"dog"
    assert bytes(data.read("b/labels.txt", offset=9)) == b""
    assert data.model("a.onnx") == "data:weights/a.onnx"
    for outside in ("../outside", "link", "b", "none", ""):
        with pytest.raises(OpFailed, match="ENOENT: host data 'weights' has no file"):
            data.read(outside)


def test_a_set_of_one_file_is_that_file_and_an_argument(device: Local) -> None:
    proteins = device.data("proteins")
    assert (proteins.files, proteins.model()) == ({"": 7}, "data:proteins")
    assert bytes(proteins.read()) == b">p\nMKV\n"
    found = device.op("sequence_search", b">q\nMKV\n", database=proteins)
    assert found.values["database"]["sequences"] == 1


def test_data_that_the_host_lacks_is_named(device: Local) -> None:
    with pytest.raises(OpFailed, match="ENOENT: no data 'none' on this host"):
        device.data("none")


def test_a_folder_of_the_operator_is_for_operations_alone(weights: Path) -> None:
    context = Context(data={"weights": weights}, digests={"data": {"weights": "0" * 64}})
    runner = Runner(load_registry(["noop"]), context)
    found, _, _ = runner.run("data.open", {"name": "weights"}, ())
    assert found == {"sha256": "0" * 64, "files": {}}
    for file in ("a.fasta", "absent"):
        with pytest.raises(OpFailed, match="EINVAL: data 'weights' is the host's own"):
            runner.run("data.read", {"name": "weights", "file": file}, ())
    with pytest.raises(OpFailed, match="ENOENT: no data 'none' on this host"):
        runner.run("data.read", {"name": "none"}, ())


def test_a_read_fits_the_memory_of_the_lease(weights: Path) -> None:
    context = Context(declared={"weights": weights}, quota=Quota(4))
    runner = Runner(load_registry(["noop"]), context)
    with pytest.raises(OpFailed, match="ENOMEM"):
        runner.run("data.read", {"name": "weights", "file": "a.fasta"}, ())
    _, [part], _ = runner.run("data.read", {"name": "weights", "file": "a.fasta", "size": 4}, ())
    assert bytes(part) == b">p\nM"
