"""Sessions of operations: resources are loaded once, counted, and freed with the last reference."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_gpu.client import Hint, Local, OpCode, Operations, OpFailed, content_ids, resources
from remote_gpu.client.resources import read_source
from remote_gpu.wire.errors import ERRNO
from remote_gpu.wire.graphs import content_id
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.store.resources import Resources

DATA = b"0123456789"


@pytest.fixture
def device() -> Iterator[Local]:
    with Local() as local:
        yield local


def test_a_resource_is_freed_with_its_last_session(device: Local) -> None:
    one, other = Operations(device), Operations(device)
    first, second = one.resource("data", DATA), other.resource("data", DATA)
    assert first == second
    assert first.content == content_id(memoryview(DATA))
    assert bytes(one.run("noop", first).buffers[0]) == DATA
    one.close()
    one.close()
    assert bytes(other.run("noop", b"", second).buffers[1]) == DATA
    other.close()
    with pytest.raises(OpFailed) as gone:
        device.op("noop", second)
    assert (gone.value.code, gone.value.errno) == ("ENOENT", errno.ENOENT)


def test_a_closed_session_refuses_calls(device: Local) -> None:
    operations = Operations(device)
    number = operations.id
    operations.close()
    for call in (
        lambda: operations.run("noop"),
        lambda: operations.resource("data", DATA),
        lambda: operations.generic(["noop"]),
    ):
        with pytest.raises(OpFailed, match="EINVAL"):
            call()
    for name in ("session.free", "resource.register", "resource.release"):
        with pytest.raises(OpFailed, match="ENOENT"):
            device.op(name, session=number)
        with pytest.raises(OpFailed, match="EINVAL"):
            device.op(name)


def test_references_are_counted(device: Local) -> None:
    with Operations(device) as operations:
        for _ in range(2):
            resource = operations.resource("data", DATA)
        operations.release(resource)
        operations.run("noop", resource)
        operations.release(resource)
        with pytest.raises(OpFailed, match="ENOENT"):
            operations.release(resource)
        with pytest.raises(OpFailed, match="ENOENT"):
            operations.run("noop", resource)


def test_a_content_has_one_type(device: Local) -> None:
    with Operations(device) as operations:
        operations.resource("data", DATA)
        with pytest.raises(OpFailed, match="EINVAL"):
            operations.resource("model", DATA)
        with pytest.raises(OpFailed, match="EINVAL"):
            operations.resource("library", DATA)


def test_loading_is_done_once_and_counted_until_the_last_reference() -> None:
    resources, quota, loads = Resources(), Quota(100), []

    def load(data: memoryview) -> list[bytes]:
        loads.append(bytes(data))
        return loads

    name = content_id(memoryview(DATA))
    sessions = [resources.new_session() for _ in range(2)]
    for session in sessions:
        resources.register(session, "data", name, memoryview(DATA))
    for _ in range(3):
        assert resources.loaded(name, quota, load) is loads
    assert (len(loads), quota.used_bytes) == (1, len(DATA))
    resources.end_session(sessions[0])
    assert quota.used_bytes == len(DATA)
    resources.end_session(sessions[1])
    assert quota.used_bytes == 0
    with pytest.raises(OpFailed, match="ENOENT"):
        resources.loaded(name, quota, load)


def test_a_failed_load_frees_its_memory() -> None:
    resources, quota = Resources(), Quota(100)
    name, session = content_id(memoryview(DATA)), resources.new_session()
    resources.register(session, "model", name, memoryview(DATA))

    def load(data: memoryview) -> None:
        raise OpFailed(OpCode.EINVAL, "not a model")

    for _ in range(2):
        with pytest.raises(OpFailed, match="EINVAL"):
            resources.loaded(name, quota, load)
        assert quota.used_bytes == 0
    with pytest.raises(OpFailed, match="ENOMEM"):
        resources.loaded(name, Quota(1), bytes)


def test_sources_of_resources(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(DATA)

    def fetch(bucket: str, key: str) -> bytes:
        return f"{bucket}|{key}".encode()

    assert bytes(read_source(bytearray(DATA))[0]) == DATA
    assert bytes(read_source(path)[0]) == bytes(read_source(str(path))[0]) == DATA
    assert bytes(read_source("s3://bucket/a/b.onnx", fetch)[0]) == b"bucket|a/b.onnx"
    path.write_bytes(b"")
    for source, code in (
        ("s3://bucket/key", "EINVAL"),
        ("s3://bucket", "EINVAL"),
        (path, "EINVAL"),
        (tmp_path / "none", "ENOENT"),
        (b"", "EINVAL"),
        ("http://127.0.0.1:1/x", "ENOENT"),
    ):
        with pytest.raises(OpFailed, match=code):
            read_source(source)


class Hashed:
    """`content_id`, and the contents that it hashed."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []

    def __call__(self, data: memoryview) -> str:
        self.contents.append(bytes(data))
        return content_id(data)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Hashed:
    made = Hashed()
    for module in (resources, content_ids):
        monkeypatch.setattr(module, "content_id", made)
    monkeypatch.setattr(resources, "_FILES", content_ids.FileIds())
    return made


def aged(path: Path, content: bytes) -> Path:
    """A file that was changed long ago, as far as its times show."""
    path.write_bytes(content)
    os.utime(path, (1.0, 1.0))
    return path


def test_an_unchanged_file_is_hashed_once(
    device: Local, hashed: Hashed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_ids, "SETTLED_S", -3600.0)  # its last change counts as long ago
    path = aged(tmp_path / "model", DATA)
    for _ in range(3):
        with Operations(device) as operations:
            assert operations.resource("data", path) == operations.resource("data", str(path))
    assert hashed.contents == [DATA]
    other = aged(tmp_path / "other", DATA[::-1])
    other.replace(path)
    with Operations(device) as operations:
        assert operations.resource("data", path).content == content_id(DATA[::-1])
    assert hashed.contents == [DATA, DATA[::-1]]


def test_a_file_that_was_just_changed_is_hashed_again(hashed: Hashed, tmp_path: Path) -> None:
    files, path = content_ids.FileIds(), tmp_path / "model"
    for content in (b"one", b"two"):
        path.write_bytes(content)
        os.utime(path, (1.0, 1.0))  # the time of its attributes is that of now
        data, status = read_source(path)
        assert status is not None
        assert files.of(status, data) == content_id(content)
    assert hashed.contents == [b"one", b"two"]


def test_the_remembered_files_are_bounded(
    hashed: Hashed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_ids, "SETTLED_S", -3600.0)
    monkeypatch.setattr(content_ids, "FILES_MAX", 2)
    files, names = content_ids.FileIds(), (b"a", b"b", b"c", b"b", b"a")
    for name in names:
        data, status = read_source(aged(tmp_path / name.decode(), name))
        assert status is not None
        files.of(status, data)
    assert hashed.contents[:3] == [b"a", b"b", b"c"]
    assert hashed.contents[-1] == b"a", "it was forgotten"


def test_bytes_are_hashed_once_per_session_and_other_buffers_always(
    device: Local, hashed: Hashed
) -> None:
    changing = bytearray(b"one")
    with Operations(device) as operations:
        for _ in range(3):
            kept = operations.resource("data", DATA)
        assert hashed.contents == [DATA]
        operations.release(kept)
        operations.resource("data", DATA)
        assert hashed.contents == [DATA, DATA], "released bytes are not kept"
        first = operations.resource("data", changing)
        changing[:] = b"two"
        assert operations.resource("data", changing) != first


def test_a_device_describes_its_operations(device: Local) -> None:
    with Operations(device) as operations:
        found = operations.describe()
        assert {info.name for info in found} == set(device.operations())
        sgemm = next(info for info in found if info.name == "sgemm")
    assert sgemm.id == "numpy"
    assert [argument["name"] for argument in sgemm.arguments] == ["m", "n", "k"]
    assert (sgemm.inputs[0]["dtype"], sgemm.inputs[0]["shape"]) == ("float32", "m×k")
    assert sgemm.limits["inputs_max"] == 2
    assert all(info.values or info.outputs for info in found)


def test_a_generic_call_is_a_list(device: Local) -> None:
    identity = bytes(memoryview(b"\0\0\x80?"))  # 1.0
    with Operations(device, hints=("nonsense", "numpy")) as operations:
        assert bytes(operations.generic(["sgemm", 1, 1, 1, identity, identity], 1)[0]) == identity
        assert operations.generic(["burn", 0]) == []
        for call, code in (
            ([], "EINVAL"),
            ([5], "EINVAL"),
            (["nonsense"], "ENOTSUP"),
            (["burn"], "EINVAL"),
            (["burn", 0, 0], "EINVAL"),
            (["burn", 0, b"x"], "EINVAL"),
        ):
            with pytest.raises(OpFailed, match=code):
                operations.generic(call)
        with pytest.raises(OpFailed, match="EINVAL"):
            operations.generic(["noop", b"x"], results=2)


def test_an_implementation_can_be_selected(device: Local) -> None:
    assert device.op("burn", ms=0, implementation="python").implementation == "python"
    for wanted in ("fortran", 5, ""):
        with pytest.raises(OpFailed) as failed:
            device.op("burn", ms=0, implementation=wanted)
        assert failed.value.errno == errno.ENOTSUP
        assert "python" in failed.value.message


def test_a_mask_of_kinds_selects_as_names_do(device: Local) -> None:
    def ran(operations: Operations) -> str:
        result = operations.run("sgemm", bytes(64), bytes(64), m=4, n=4, k=4)
        return str(result.implementation)

    operations = Operations(device, hints=Hint.CPU)
    assert ran(operations).startswith("numpy")
    there = [one for one in operations.describe() if one.name == "sgemm"]
    kernels = [one for one in there if "opencl" in one.kinds]  # where a driver works
    operations.update(Hint.GPU | Hint.FPGA)
    assert ran(operations) == (kernels or there)[0].implementation
    operations.update(("numpy",))
    assert ran(operations).startswith("numpy")
    for remote in (Hint.REMOTE, Hint.CPU | Hint.REMOTE):
        with pytest.raises(OpFailed, match="ENODEV"):
            Operations(device, hints=remote)
        with pytest.raises(OpFailed, match="ENODEV"):
            operations.update(remote)


def test_sync_replaces_a_resource_by_what_its_source_has_now(device: Local, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    with Operations(device) as operations:
        old = operations.resource("data", path)
        assert operations.sync(old, path) == old
        assert bytes(operations.run("noop", old).buffers[0]) == b"old"
        path.write_bytes(b"newer")
        new = operations.sync(old, path)
        assert bytes(operations.run("noop", new).buffers[0]) == b"newer"
        with pytest.raises(OpFailed, match="ENOENT"):
            operations.run("noop", old)
        path.unlink()
        with pytest.raises(OpFailed, match="ENOENT"):
            operations.sync(new, path)
        assert bytes(operations.run("noop", new).buffers[0]) == b"newer"


def test_the_regions_of_the_newest_call(device: Local) -> None:
    with Operations(device) as operations:
        operations.run("burn", ms=20)
        long = operations.regions()
        assert long.ran_us >= 20_000
        assert (long.queued_us, long.copied_us) == (0, 0)
        operations.describe()  # not an operation
        assert operations.regions() == long
        operations.run("noop", b"x", out=[device.buffer(1)])
        short = operations.regions()
        assert short.ran_us < long.ran_us
        assert short.copied_us >= 0


def test_every_code_has_its_number() -> None:
    assert set(ERRNO) == set(OpCode)
    assert all(
        errno.errorcode[number] in (code, "ENOTSUP", "EOPNOTSUPP") for code, number in ERRNO.items()
    )
    assert OpFailed("ENEW", "of a later version").errno == errno.EIO
