"""Errors of cards in the texts of libraries, and what they do to a worker."""

from __future__ import annotations

import pytest

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.cards.card import Card
from remote_gpu.worker.cards.errors import _KNOWN, CardError, Effect, effect_of, error_in

NODE = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Conv node."
    " Name:'Conv_0' Status Message: "
)
THROWN = (
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: "
    "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:124 std::conditional_t<THRW, "
    "void, onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE, const char*, const char*, "
    "ERRTYPE, const char*, const char*, int) [with ERRTYPE = cudaError; bool THRW = true] "
)
ARENA = NODE + (
    "/onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::"
    "AllocateRawInternal(size_t, bool, onnxruntime::Stream*, bool, "
    "onnxruntime::WaitNotificationFn) "
)
WHERE = (
    " ; GPU=0 ; hostname=gpu-a ; file=/onnxruntime_src/cuda_stream_handle.cc ; line=52"
    " ; expr=cudaMemcpy(dst_data, src_data, bytes, cudaMemcpyHostToDevice); "
)
CALL, MEMORY, CONTEXT, DEVICE = Effect.CALL, Effect.MEMORY, Effect.CONTEXT, Effect.DEVICE
ILLEGAL, ALLOCATION = "an illegal memory access was encountered", "INTERNAL_ERROR_DEVICE_ALLOCATION"
#: Texts of exceptions: before the error, the error, its name ("": as the text), its effect.
CASES = [
    (NODE, f"CUDA failure 700: {ILLEGAL}", "CUDA_ERROR_ILLEGAL_ADDRESS", CONTEXT),
    (NODE, f"CUDA error cudaErrorIllegalAddress: {ILLEGAL}", "CUDA_ERROR_ILLEGAL_ADDRESS", CONTEXT),
    (THROWN, "CUDA failure 719: unspecified launch failure", "CUDA_ERROR_LAUNCH_FAILED", CONTEXT),
    (THROWN, "CUDA failure 214: uncorrectable ECC", "CUDA_ERROR_ECC_UNCORRECTABLE", DEVICE),
    (THROWN, "CUDA failure 100: no CUDA-capable device", "CUDA_ERROR_NO_DEVICE", DEVICE),
    (THROWN, "CUDA failure 2: out of memory", "CUDA_ERROR_OUT_OF_MEMORY", MEMORY),
    (THROWN, "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED", "", MEMORY),
    (NODE, f"CUDNN failure 4002: CUDNN_STATUS_{ALLOCATION}_FAILED", "", MEMORY),
    (NODE, "CUDNN failure 4: CUDNN_STATUS_INTERNAL_ERROR", "", CALL),
    (NODE, "CUDNN_FE failure 11: CUDNN_BACKEND_API_FAILED", "", CALL),
    (NODE, "CUDA failure 209: no kernel image is available", "", CALL),
    (NODE, "CUDA error cudaErrorNotReady: device not ready", "cudaErrorNotReady", CALL),
    (
        ARENA,
        "Failed to allocate memory for requested buffer of size 8388608000",
        "Failed to allocate memory for requested buffer",
        MEMORY,
    ),
    (
        ARENA,
        "Available memory of 0 is smaller than requested bytes of 2048",
        "is smaller than requested bytes of",
        MEMORY,
    ),
]
TEXTS = [
    (before + error + (WHERE if " failure " in error else ""), name or error, effect)
    for before, error, name, effect in CASES
]
#: Errors of a model or its inputs, the last one with a name that a tenant chose.
OTHERS = [
    "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input: x",
    "CUDA is mentioned",
    "",
    NODE.replace("Conv_0", "CUDA failure 214: uncorrectable ECC ; GPU=0") + "X num_dims differ",
]


@pytest.mark.parametrize(("text", "name", "effect"), TEXTS)
def test_texts_of_onnx_runtime_have_the_drivers_meaning(
    text: str, name: str, effect: Effect
) -> None:
    assert error_in(text) == CardError(name, effect)


@pytest.mark.parametrize("text", OTHERS)
def test_errors_of_a_model_are_none_of_the_card(text: str) -> None:
    assert error_in(text) is None


def test_numbers_and_names_are_those_of_the_driver_and_of_the_runtime() -> None:
    driver = pytest.importorskip("cuda.bindings.driver").CUresult
    runtime = pytest.importorskip("cuda.bindings.runtime").cudaError_t
    for known in _KNOWN:
        assert getattr(driver, f"CUDA_ERROR_{known.driver}") == known.number
        assert getattr(runtime, f"cudaError{known.runtime}") == known.number
    assert effect_of("CUDA_ERROR_INVALID_VALUE") is Effect.CALL


class Used:
    """A card, and what was done about it."""

    def __init__(self) -> None:
        self.reports: list[str] = []
        self.ends = 0
        self.card = Card(report=self.reports.append, on_lost=self._end)

    def _end(self) -> None:
        self.ends += 1

    def fail(self, text: str) -> str:
        """The failure of a call whose library raises the text."""
        with pytest.raises(OpFailed) as failed, self.card.library("ONNX Runtime"):
            raise RuntimeError(text)
        return f"{failed.value.code}: {failed.value.message}"


@pytest.mark.parametrize(("text", "name", "effect"), TEXTS)
def test_a_library_and_the_driver_have_the_same_effects(
    text: str, name: str, effect: Effect
) -> None:
    """As of the driver: memory is ENOMEM, a lost context ends the process at the next call, a
    failed device is reported."""
    used = Used()
    message = used.fail(text)
    if effect is Effect.MEMORY:
        assert message.startswith("ENOMEM: ONNX Runtime needs more memory of the card")
    else:
        assert message == f"EIO: the device failed: ONNX Runtime reports {name}"
    is_lost = effect in (Effect.CONTEXT, Effect.DEVICE)
    with used.card.library("ONNX Runtime"):
        assert used.ends == int(is_lost)
    reported = [f"the device failed: ONNX Runtime reports {name}"]
    assert used.reports == (reported if effect is Effect.DEVICE else [])


def test_a_library_s_other_errors_are_its_callers() -> None:
    used = Used()
    with pytest.raises(ValueError, match="a shape"), used.card.library("ONNX Runtime"):
        raise ValueError("a shape")
    with pytest.raises(OpFailed) as failed, used.card.library("ONNX Runtime"):
        raise OpFailed(OpCode.ENOTSUP, "CUDA failure 700: of an operation")
    assert failed.value.code is OpCode.ENOTSUP
    assert (used.ends, used.reports) == (0, [])
