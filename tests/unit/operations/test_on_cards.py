"""Operations for NVIDIA cards on a machine without one: the choice of libraries, and what is said
where they are missing."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

from operations.inference.model import ON_CPU, Model, check_cuda, processor_of
from operations.matrix import cublas
from operations.recognition.engine import RecognitionDevice, Recognizer, model_paths
from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.cards.card import Card, visible_ordinal
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context

FOR_CPUS = "CUDAExecutionProvider" not in onnxruntime.get_available_providers()
only_for_cpus = pytest.mark.skipif(not FOR_CPUS, reason="this ONNX Runtime serves cards")


def code_of(failed: pytest.ExceptionInfo[OpFailed]) -> OpCode | str:
    return failed.value.code


def test_a_card_has_the_limit_of_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2")
    card_of_lease = Card(context_bytes=1 << 28)
    context = Context(kind="cuda", device="GPU-2", quota=Quota(1 << 30), card=card_of_lease)
    processor = processor_of(context)
    card, other = processor.providers
    assert isinstance(card, tuple)
    name, options = card
    assert (name, other) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options["device_id"] == "1"
    assert options["gpu_mem_limit"] == str((1 << 30) - (1 << 28)), "a context takes the rest"
    assert processor.card is card_of_lease
    assert processor_of(Context()) is ON_CPU


@pytest.mark.parametrize(
    ("visible", "device", "ordinal"),
    [("", "", 0), ("", "GPU-1", 0), ("GPU-1", "GPU-1", 0), ("GPU-2, GPU-1", "GPU-1", 1)],
)
def test_ordinals_are_those_of_the_process(
    monkeypatch: pytest.MonkeyPatch, visible: str, device: str, ordinal: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_ordinal(device) == ordinal


def test_a_hidden_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2")
    with pytest.raises(OpFailed, match="GPU-1 is not among") as failed:
        visible_ordinal("GPU-1")
    assert code_of(failed) is OpCode.ENODEV


@only_for_cpus
def test_the_extra_for_cards_is_named() -> None:
    with pytest.raises(OpFailed, match=r"install orchgpu\[host-cuda\]") as failed:
        check_cuda()
    assert code_of(failed) is OpCode.ENOTSUP


@only_for_cpus
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_model_never_falls_back_to_the_cpu() -> None:
    path: Path = model_paths()["Cls"]
    with pytest.raises(OpFailed, match="cannot use this card") as failed:
        Model(path, processor_of(Context(kind="cuda")))
    assert code_of(failed) is OpCode.ENOTSUP


@only_for_cpus
def test_text_recognition_never_falls_back_to_the_cpu() -> None:
    with pytest.raises(OpFailed, match="cannot use this card"):
        Recognizer(RecognitionDevice(Card(), 0, 1 << 30))


def test_products_name_the_extra_where_the_library_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cuda import pathfinder

    def missing(name: str) -> None:
        raise pathfinder.DynamicLibNotFoundError(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", missing)
    cublas.library.cache_clear()
    with pytest.raises(OpFailed, match=r"orchgpu\[host-cuda\]") as failed:
        cublas.library()
    assert code_of(failed) is OpCode.ENOTSUP
    cublas.library.cache_clear()
