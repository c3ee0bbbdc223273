"""A loaded ONNX model: ONNX Runtime on one thread or on a card, with its inputs and outputs.

A model is named by host data (`data:NAME` or `data:NAME/file.onnx`), loaded once for all leases, or
by its content (`sha256:<hex>`), registered by a session of this lease.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnxruntime

from operations.inference.batching import Batcher
from operations.numpy_arrays import Array, array_of
from remote_gpu.api import (
    CONTENT_PREFIX,
    Card,
    Context,
    Meta,
    OpCode,
    OpFailed,
    invalid,
    visible_ordinal,
)

_log = logging.getLogger(__name__)

IMPLEMENTATION = f"onnxruntime {onnxruntime.__version__}"
CUDA_IMPLEMENTATION = f"onnxruntime-cuda {onnxruntime.__version__}"
_CUDA = "CUDAExecutionProvider"
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(bool)": "bool",
}
#: ONNX Runtime's providers in the order of preference, with their options.
Providers: TypeAlias = "tuple[str | tuple[str, dict[str, str]], ...]"


@dataclass(frozen=True, slots=True)
class Processor:
    """The device of a model."""

    providers: Providers
    card: Card | None = None  #: None: the CPU

    def call(self) -> AbstractContextManager[None]:
        """One call of ONNX Runtime. Raises OpFailed: ENOMEM, EIO for errors of the card."""
        return contextlib.nullcontext() if self.card is None else self.card.library("ONNX Runtime")


ON_CPU = Processor(("CPUExecutionProvider",))
#: ONNX Runtime's messages for a failed allocation.
_NO_MEMORY = re.compile(r"bad_alloc|AllocateRaw|[Ff]ailed to allocate|SIZE_MAX")
#: A model may refer to files with weights. For sent models the library would read them from gpud's
#: working folder; this option gives it a folder without files.
_WEIGHTS_FOLDER, _NOWHERE = "session.model_external_initializers_file_folder_path", "/dev/null"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output as the model declares it."""

    name: str
    dtype: str  #: numpy's name; the model's own for other types
    shape: tuple[int | None, ...]  #: None: any size

    def to_meta(self) -> Meta:
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}


class Model:
    """A loaded model. Immutable and thread-safe."""

    def __init__(self, source: bytes | Path, processor: Processor = ON_CPU) -> None:
        """Load for a device; bytes must include all weights. Raises OpFailed: ENOMEM, EIO, ENOTSUP
        for a card without its libraries, EINVAL for a malformed model."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the lease's share is one core of the host
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # errors are raised; logs would have a tenant's text
        options.enable_cpu_mem_arena = False  # it would keep the memory of a run
        given = str(source) if isinstance(source, Path) else source
        if given is source:
            options.add_session_config_entry(_WEIGHTS_FOLDER, _NOWHERE)
        providers = list(processor.providers)
        try:
            with processor.call():
                self._session = onnxruntime.InferenceSession(given, options, providers=providers)
        except OpFailed:
            raise
        except Exception as error:  # of a dozen classes of the library
            raise _failed("not a valid model", error) from None
        if processor.card is not None:
            check_on_card(self._session)
        self._processor = processor
        self.inputs = {tensor.name: _declared(tensor) for tensor in self._session.get_inputs()}
        self.outputs = {tensor.name: _declared(tensor) for tensor in self._session.get_outputs()}
        # not `self.run`: a reference cycle would delay freeing the memory
        self.batcher = Batcher(partial(_computed, processor, self._session))

    @property
    def joinable(self) -> bool:
        """Whether every input and output has a free first dimension."""
        tensors = [*self.inputs.values(), *self.outputs.values()]
        return all(tensor.shape and tensor.shape[0] is None for tensor in tensors)

    def run(self, feeds: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Compute contiguous results. Raises OpFailed: ENOMEM, EIO, EINVAL for inputs that the
        model rejects."""
        return _computed(self._processor, self._session, feeds, outputs)

    def feeds(self, described: object, tensors: Sequence[memoryview]) -> dict[str, Array]:
        """The checked inputs of a call. Raises OpFailed: EINVAL, ENOTSUP."""
        if not isinstance(described, list) or len(described) != len(tensors):
            raise invalid("'inputs' must describe each tensor: [{name, shape}]")
        feeds = {}
        for item, view in zip(described, tensors, strict=True):
            name = item.get("name") if isinstance(item, dict) else None
            if not isinstance(name, str) or name not in self.inputs:
                known = ", ".join(self.inputs)
                raise invalid(f"the model has no input {name!r}; it has {known}")
            wanted = self.inputs[name]
            if wanted.dtype not in _DTYPES.values():
                raise _unsupported(f"input {name!r}", wanted.dtype)
            feeds[name] = array_of(view, wanted.dtype, item.get("shape"), f"input {name!r}: ")
        return feeds

    def output_names(self, wanted: object) -> list[str]:
        """The outputs of a call; None: all. Raises OpFailed: EINVAL, ENOTSUP for outputs without
        numbers."""
        names = list(self.outputs) if wanted is None else wanted
        if not isinstance(names, list) or not names or not all(map(self._gives, names)):
            raise invalid(f"'outputs' must name some of {', '.join(self.outputs)}")
        for tensor in (self.outputs[name] for name in names):
            if tensor.dtype not in _DTYPES.values():
                raise _unsupported(f"output {tensor.name!r}", tensor.dtype)
        return list(names)

    def _gives(self, name: object) -> bool:
        return isinstance(name, str) and name in self.outputs


class ModelsOnCards:
    """The card's part of such an operation, before the class with its CPU's.

    Models are loaded by a lease's first call: a card's context does not survive a fork.
    """

    implementation = CUDA_IMPLEMENTATION
    kinds: tuple[str, ...] = ("cuda",)
    libraries: tuple[str, ...] = ("onnxruntime-gpu",)
    by_kernels = True

    def prepare(self, context: Context) -> None:
        """Check that the library serves cards."""
        del context
        check_cuda()


def check_cuda() -> None:
    """Load the libraries of ONNX Runtime's provider for NVIDIA cards, without a driver or threads.

    Raises OpFailed(ENOTSUP) where the installed ONNX Runtime has no such provider.
    """
    if _CUDA not in onnxruntime.get_available_providers():
        message = "this ONNX Runtime computes on CPUs only: install orchgpu[host-cuda]"
        raise OpFailed(OpCode.ENOTSUP, message)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        onnxruntime.preload_dlls()
    if missing := printed.getvalue().strip():
        _log.warning("libraries of cards", extra={"event": "libraries", "missing": missing})


def processor_of(context: Context) -> Processor:
    """The device of a context, for ONNX Runtime. The library's memory on a card grows by what is
    asked for, up to the lease's memory without that of a context."""
    if context.kind != "cuda":
        return ON_CPU
    context.charge_context()
    options = {
        "device_id": str(visible_ordinal(context.device)),
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "1",
    }
    if context.quota.limit_bytes is not None:
        options["gpu_mem_limit"] = str(context.quota.limit_bytes - context.card.context_bytes)
    return Processor(((_CUDA, options), "CPUExecutionProvider"), context.card)


def find_model(context: Context, name: str) -> Model:
    """A model by its name, loaded on first use. Raises OpFailed: EINVAL, ENOENT, ENOMEM, EIO."""
    processor = processor_of(context)
    device = context.kind if context.kind == "cpu" else f"{context.kind} {context.device}"
    if name.startswith(CONTENT_PREFIX):
        return context.resources.loaded(
            name, context.quota, lambda data: Model(bytes(data), processor), device
        )
    kind, _, rest = name.partition(":")
    if kind != "data":
        raise invalid(f"model {name!r} is neither data:NAME nor sha256:HEX")
    data, slash, inside = rest.partition("/")
    context.data_path(data)  # a warm model counts as used too
    key = f"{context.data_key(data)}{slash}{inside}"
    key = key if context.kind == "cpu" else f"{key} on {device}"
    return context.warm.get(key, lambda: Model(context.data_file(data, inside), processor))


def load_host_models(context: Context) -> None:
    """Load every `.onnx` file of the host data."""
    for name, path in context.data.items():
        if path.suffix == ".onnx":
            find_model(context, f"data:{name}")


def run_joined(
    context: Context, model: Model, feeds: Mapping[str, Array], outputs: Sequence[str]
) -> tuple[list[Array], int]:
    """The results, and the number of calls in the run. Raises OpFailed(EINVAL) unless every tensor
    of the call has the same number of items."""
    if not model.joinable:
        raise invalid("'batch' needs a model whose tensors all have a free first dimension")
    counts = {array.shape[0] if array.ndim else 0 for array in feeds.values()}
    if len(counts) != 1 or 0 in counts or len(feeds) != len(model.inputs):
        raise invalid("'batch' needs every input, with the same number of items")
    if context.within_turn:
        return model.run(feeds, outputs), 1
    return model.batcher.run(
        feeds,
        outputs,
        context.turn_of_batch,
        context.quota.held,
        context.options.batch_wait_ms / 1000,
        context.caller,
        context.batch_items_max,
    )


def check_on_card(session: Any) -> None:
    """Raises OpFailed(ENOTSUP) if the library fell back to the CPU, as it does with a log line only
    where one of the card's libraries is missing."""
    session.disable_fallback()
    if _CUDA not in session.get_providers():
        message = "ONNX Runtime cannot use this card: CUDA's or cuDNN's libraries are missing"
        raise OpFailed(OpCode.ENOTSUP, f"{message}; install orchgpu[host-cuda]")


def _computed(
    processor: Processor, session: Any, feeds: Mapping[str, Array], outputs: Sequence[str]
) -> list[Array]:
    try:
        with processor.call():
            results = session.run(list(outputs), dict(feeds))
    except OpFailed:
        raise
    except Exception as error:  # as above
        raise _failed("the model rejects these inputs", error) from None
    return [np.ascontiguousarray(tensor) for tensor in results]


def _failed(what: str, error: Exception) -> OpFailed:
    """The error for the caller; memory errors without the library's details."""
    text = str(error)
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        needs = "more memory than the lease has left; free some, or request more memory_mib"
        return OpFailed(OpCode.ENOMEM, f"the model needs {needs}")
    return invalid(f"{what}: {text[:300]}")


def _unsupported(tensor: str, dtype: str) -> OpFailed:
    return OpFailed(OpCode.ENOTSUP, f"{tensor} is {dtype}; only tensors of numbers are supported")


def _declared(tensor: Any) -> Tensor:
    sizes = tuple(size if type(size) is int else None for size in tensor.shape)
    return Tensor(tensor.name, _DTYPES.get(tensor.type, tensor.type), sizes)
