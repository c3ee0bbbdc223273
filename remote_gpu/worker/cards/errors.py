"""Errors of NVIDIA cards: their effect by the driver's names, and in the texts of libraries.

ONNX Runtime uses a card by itself. Its exceptions have one class for errors of the model, of a
lease's memory and of the card; only the text distinguishes them (microsoft/onnxruntime, MIT):

- `core/providers/cuda/cuda_call.cc`: `CUDA failure 700: an illegal memory access was encountered ;
  GPU=0 ; hostname=… ; expr=…`, with the number of the CUDA runtime, and the same of CUBLAS, CUDNN,
  CUDNN_FE, CUFFT, CURAND and CUSPARSE with numbers of their own; later versions also
  `CUDA error cudaErrorIllegalAddress: …`
- `core/framework/bfc_arena.cc`: `… AllocateRawInternal … Failed to allocate memory for requested
  buffer of size 8388608000`, and, at `gpu_mem_limit`, `Available memory of 0 is smaller than
  requested bytes of 2048`
- `core/framework/sequential_executor.cc`: these follow `Non-zero status code returned while running
  Conv node. Name:'…' Status Message: `; the name is the model's, so nothing before is looked at.

Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Effect(StrEnum):
    """The effect of an error on what uses the card."""

    CALL = "CALL"  #: the call failed; later ones may not
    MEMORY = "MEMORY"  #: there is not enough memory of the card
    CONTEXT = "CONTEXT"  #: the process must end; the next one can use the card
    DEVICE = "DEVICE"  #: the card or its driver: the next process may get it too


class _Known(NamedTuple):
    number: int  #: of the driver and of the runtime
    driver: str  #: after `CUDA_ERROR_`
    runtime: str  #: after `cudaError`
    effect: Effect


_KNOWN = (
    _Known(2, "OUT_OF_MEMORY", "MemoryAllocation", Effect.MEMORY),
    _Known(46, "DEVICE_UNAVAILABLE", "DevicesUnavailable", Effect.DEVICE),
    _Known(100, "NO_DEVICE", "NoDevice", Effect.DEVICE),
    _Known(101, "INVALID_DEVICE", "InvalidDevice", Effect.DEVICE),
    _Known(102, "DEVICE_NOT_LICENSED", "DeviceNotLicensed", Effect.DEVICE),
    _Known(214, "ECC_UNCORRECTABLE", "ECCUncorrectable", Effect.DEVICE),
    _Known(220, "NVLINK_UNCORRECTABLE", "NvlinkUncorrectable", Effect.DEVICE),
    _Known(226, "CONTAINED", "Contained", Effect.CONTEXT),
    _Known(700, "ILLEGAL_ADDRESS", "IllegalAddress", Effect.CONTEXT),
    _Known(702, "LAUNCH_TIMEOUT", "LaunchTimeout", Effect.CONTEXT),
    _Known(710, "ASSERT", "Assert", Effect.CONTEXT),
    _Known(714, "HARDWARE_STACK_ERROR", "HardwareStackError", Effect.CONTEXT),
    _Known(715, "ILLEGAL_INSTRUCTION", "IllegalInstruction", Effect.CONTEXT),
    _Known(716, "MISALIGNED_ADDRESS", "MisalignedAddress", Effect.CONTEXT),
    _Known(717, "INVALID_ADDRESS_SPACE", "InvalidAddressSpace", Effect.CONTEXT),
    _Known(718, "INVALID_PC", "InvalidPc", Effect.CONTEXT),
    _Known(719, "LAUNCH_FAILED", "LaunchFailure", Effect.CONTEXT),
    _Known(802, "SYSTEM_NOT_READY", "SystemNotReady", Effect.DEVICE),
    _Known(803, "SYSTEM_DRIVER_MISMATCH", "SystemDriverMismatch", Effect.DEVICE),
    _Known(911, "EXTERNAL_DEVICE", "ExternalDevice", Effect.CONTEXT),
    _Known(999, "UNKNOWN", "Unknown", Effect.CONTEXT),
)
_BY_DRIVER = {f"CUDA_ERROR_{known.driver}": known for known in _KNOWN}
_BY_NUMBER = {known.number: known for known in _KNOWN}
_BY_RUNTIME = {f"cudaError{known.runtime}": known for known in _KNOWN}

_STATUS = "Status Message:"
_FAILURE = re.compile(
    r"\b(CUDA|CUBLAS|CUDNN|CUDNN_FE|CUFFT|CURAND|CUSPARSE|NCCL) failure (\d+): ([^;\n]{1,100})"
)
_RUNTIME_ERROR = re.compile(r"\bCUDA error (cudaError\w{1,60})")
_ALLOCATION = re.compile(r"\b(?:CUBLAS|CUDNN|CUFFT|CURAND|CUSPARSE)_\w*ALLOC(?:ATION)?_FAILED\b")
_ARENA = re.compile(
    r"Failed to allocate memory for requested buffer|is smaller than requested bytes of"
)


@dataclass(frozen=True, slots=True)
class CardError:
    """An error of a card."""

    name: str  #: the driver's, or as a library reports it
    effect: Effect


def effect_of(name: str) -> Effect:
    """The effect of an error of the driver by its name."""
    known = _BY_DRIVER.get(name)
    return Effect.CALL if known is None else known.effect


def error_in(text: str) -> CardError | None:
    """The error of a card in a library's text; None: it has none."""
    status = text.rpartition(_STATUS)[2]
    if (failure := _FAILURE.search(status)) is not None:
        library, number, detail = failure.groups()
        if library == "CUDA":
            return _error(_BY_NUMBER.get(int(number)), f"CUDA failure {number}: {detail.strip()}")
        effect = Effect.MEMORY if _ALLOCATION.search(detail) else Effect.CALL
        return CardError(f"{library} failure {number}: {detail.strip()}", effect)
    if (named := _RUNTIME_ERROR.search(status)) is not None:
        return _error(_BY_RUNTIME.get(named[1]), named[1])
    if (arena := _ARENA.search(status)) is not None:
        return CardError(arena[0], Effect.MEMORY)
    return None


def _error(known: _Known | None, otherwise: str) -> CardError:
    if known is None:
        return CardError(otherwise, Effect.CALL)
    return CardError(f"CUDA_ERROR_{known.driver}", known.effect)
