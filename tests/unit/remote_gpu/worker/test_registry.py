"""The registry finds operations by their files and by entry points of other distributions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from remote_gpu.worker.lane import Runner
from remote_gpu.worker.operation import Context
from remote_gpu.worker.registry import load_registry

OPERATION = """
from remote_gpu.api import CpuOperation, Limits, Port, Signature

class Reverse(CpuOperation):
    name = "reverse"
    implementation = "python"
    limits = Limits(inputs_min=1, inputs_max=1)
    signature = Signature(inputs=(Port(name="text", dtype="bytes", shape=""),))

    def run(self, context, args, inputs):
        return {}, [bytes(inputs[0])[::-1]]

OPERATIONS = (Reverse(),)
"""
#: Libraries of the extra `orchgpu[host]`.
HOST_LIBRARIES = ("numpy", "onnxruntime", "rapidocr", "cv2", "PIL", "pyopal", "scoring_matrices")


def install(folder: Path, code: str, entry: str) -> None:
    """A distribution in `folder`, as pip leaves one."""
    (folder / "reversing.py").write_text(code)
    info = folder / "reversing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reversing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[orchgpu.operations]\n{entry}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to import from; nothing of it stays imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "reversing", raising=False)
    return tmp_path


def test_an_operation_of_another_distribution_runs(folder: Path) -> None:
    install(folder, OPERATION, "reverse = reversing:OPERATIONS")
    runner = Runner(load_registry(["reverse", "noop"]), Context())
    _, results, implementation = runner.run("reverse", {}, [memoryview(b"abc")])
    assert (bytes(results[0]), implementation) == (b"cba", "python")
    runner.close()


PER_KIND = OPERATION.replace(
    "OPERATIONS = (Reverse(),)",
    """
class OnVpu(Reverse):
    implementation = "stick 1.0"
    kinds = ("vpu",)
    libraries = ("reversing", "not-installed")

OPERATIONS = (Reverse(), OnVpu())
""",
)


@pytest.mark.parametrize(("kind", "implementation"), [("cpu", "python"), ("vpu", "stick 1.0")])
def test_an_operation_has_an_implementation_for_each_kind(
    folder: Path, kind: str, implementation: str
) -> None:
    """The caller names the operation; the device that it got decides."""
    install(folder, PER_KIND, "reverse = reversing:OPERATIONS")
    runner = Runner(load_registry(["reverse"]), Context(kind=kind))
    _, results, ran = runner.run("reverse", {}, [memoryview(b"abc")])
    assert (bytes(results[0]), ran) == (b"cba", implementation)
    runner.close()


def test_versions_of_libraries_are_those_of_the_kind(folder: Path) -> None:
    install(folder, PER_KIND, "reverse = reversing:OPERATIONS")
    registry = load_registry(["reverse"])
    assert registry.libraries("vpu") == {"reversing": "1.0"}
    assert registry.libraries("cpu") == {}
    assert set(load_registry(["onnx", "sgemm"]).libraries("cpu")) >= {"numpy", "onnxruntime"}


def test_an_operation_that_is_not_named_is_not_imported(folder: Path) -> None:
    install(folder, OPERATION, "reverse = reversing:OPERATIONS")
    assert load_registry(["noop"]).names("cpu") == ("noop",)
    assert "reversing" not in sys.modules


@pytest.mark.parametrize(
    ("code", "entry", "failure"),
    [
        ("import no_such_library", "reverse = reversing:OPERATIONS", "No module named"),
        ("raise RuntimeError('at import')", "reverse = reversing:OPERATIONS", "at import"),
        ("", "reverse = reversing:OPERATIONS", "has no attribute 'OPERATIONS'"),
        ("OPERATIONS = (1,)", "reverse = reversing:OPERATIONS", "1 is not an operation"),
        (OPERATION, "noop = reversing:OPERATIONS", "the name 'noop' is taken"),
    ],
)
def test_a_broken_distribution_is_noted_and_the_others_serve(
    folder: Path, code: str, entry: str, failure: str
) -> None:
    install(folder, code, entry)
    registry = load_registry(["reverse", "noop"])
    assert registry.names("cpu") == ("noop",)
    assert failure in " ".join(registry.failures.values())


def test_a_host_without_the_libraries_offers_the_rest_and_names_the_extra() -> None:
    code = (
        f"import json, sys; sys.modules.update(dict.fromkeys({HOST_LIBRARIES}))\n"
        "import remote_gpu.host.app, remote_gpu.worker.spawner\n"
        "from remote_gpu.worker.registry import load_registry\n"
        "registry = load_registry(); print(json.dumps([registry.names('cpu'), registry.failures]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, failures = json.loads(ran.stdout)
    assert names == ["burn", "exec", "noop"]
    assert set(failures) >= {"arrays", "onnx", "sgemm", "sequence_search", "text_recognition"}
    assert all(reason.endswith("install orchgpu[host]") for reason in failures.values())
