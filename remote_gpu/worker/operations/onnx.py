"""`onnx`: runs a model with ONNX Runtime on one thread; models stay loaded between calls.

A model is named by host data (`model="data:NAME"` or `"data:NAME/file.onnx"`) or by its content
(`model="sha256:<hex>"`, its bytes as the first input when `upload=True`). Content is known to the
lease that sent it and to no other; host data is loaded once, before any lease, for all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.arguments import only, text
from remote_gpu.worker.operation import Context, Limits, Outcome

_DTYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16",
    "tensor(int8)": "int8", "tensor(int16)": "int16", "tensor(int32)": "int32",
    "tensor(int64)": "int64", "tensor(uint8)": "uint8", "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32", "tensor(uint64)": "uint64", "tensor(bool)": "bool",
}  # fmt: skip
_DIMENSIONS_MAX = 16


def open_session(model: bytes | Path) -> onnxruntime.InferenceSession:
    """A session on one thread, on the CPU; raises OpFailed(EINVAL) for what is not a model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the lease's share is one core of the host
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else model
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library has a dozen exception classes of its own for this
        raise OpFailed(OpCode.EINVAL, f"not a model that can run: {str(error)[:300]}") from None


class Onnx:
    """Arguments `model`, `upload`, `inputs` = [{"name", "shape"}] in the order of the tensors, and
    optional `outputs` = names → values {"outputs": [{"name", "dtype", "shape"}]} and the tensors.
    """

    name = "onnx"
    version = 1
    kinds = ("cpu",)
    implementation = f"onnxruntime {onnxruntime.__version__}"
    limits = Limits(inputs_max=33, input_bytes_max=1 << 32)

    def prepare(self, context: Context) -> None:
        """Load every `.onnx` file that the host names as data."""
        for name, path in context.data.items():
            if path.suffix == ".onnx":
                _resident(context, f"data:{name}")

    def run(
        self, context: Context, args: Mapping[str, Any], inputs: Sequence[memoryview]
    ) -> Outcome:
        only(args, "model", "upload", "inputs", "outputs")
        model, tensors = text(args, "model"), list(inputs)
        if args.get("upload") is True:
            session = _uploaded(context, model, tensors.pop(0) if tensors else memoryview(b""))
        else:
            session = _resident(context, model)
        if not tensors and not args.get("inputs"):
            return {"inputs": [i.name for i in session.get_inputs()]}, []
        feeds = _feeds(session, args.get("inputs"), tensors)
        names = _output_names(session, args.get("outputs"))
        results = [np.ascontiguousarray(r) for r in session.run(names, feeds)]
        described = [
            {"name": name, "dtype": str(result.dtype), "shape": list(result.shape)}
            for name, result in zip(names, results, strict=True)
        ]
        with context.quota.held(sum(result.nbytes for result in results)):
            return {"outputs": described}, results


def _resident(context: Context, model: str) -> onnxruntime.InferenceSession:
    kind, _, rest = model.partition(":")
    if kind == "sha256":
        session: onnxruntime.InferenceSession | None = context.warm.find(model)
        if session is None:
            raise OpFailed(OpCode.ENOENT, f"model {model} is not resident; send it with upload")
        return session
    if kind != "data":
        raise OpFailed(OpCode.EINVAL, f"model {model!r} is neither data:NAME nor sha256:HEX")
    return context.warm.get(model, lambda: open_session(_model_path(context, rest)))


def _model_path(context: Context, name: str) -> Path:
    name, _, inside = name.partition("/")
    root = context.data_path(name).resolve()
    path = (root / inside).resolve() if inside else root
    if not path.is_relative_to(root) or not path.is_file():
        raise OpFailed(OpCode.ENOENT, f"data {name!r} of this host has no file {inside!r}")
    return path


def _uploaded(context: Context, model: str, content: memoryview) -> onnxruntime.InferenceSession:
    found = "sha256:" + hashlib.sha256(content).hexdigest()
    if found != model:
        raise OpFailed(OpCode.EINVAL, f"the model sent is {found}, not {model}")

    def load() -> onnxruntime.InferenceSession:
        context.quota.reserve(content.nbytes)  # its weights stay as long as the lease
        try:
            return open_session(bytes(content))
        except OpFailed:
            context.quota.free(content.nbytes)
            raise

    return context.warm.get(model, load)


def _feeds(
    session: onnxruntime.InferenceSession, described: Any, tensors: Sequence[memoryview]
) -> dict[str, np.ndarray[Any, Any]]:
    types = {known.name: known.type for known in session.get_inputs()}
    if not isinstance(described, list) or len(described) != len(tensors):
        raise OpFailed(OpCode.EINVAL, "'inputs' must describe each tensor: [{name, shape}]")
    feeds = {}
    for item, view in zip(described, tensors, strict=True):
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str) or name not in types:
            raise OpFailed(OpCode.EINVAL, f"no input {name!r}; it has {', '.join(types)}")
        if types[name] not in _DTYPES:
            raise OpFailed(OpCode.ENOTSUP, f"input {name!r} is {types[name]}: tensors only")
        feeds[name] = _tensor(name, view, np.dtype(_DTYPES[types[name]]), item.get("shape"))
    return feeds


def _tensor(name: str, view: memoryview, dtype: np.dtype[Any], shape: Any) -> np.ndarray[Any, Any]:
    if not isinstance(shape, list) or len(shape) > _DIMENSIONS_MAX:
        raise OpFailed(OpCode.EINVAL, f"input {name!r}: 'shape' must be a list of sizes")
    if not all(type(size) is int and 0 <= size < 2**40 for size in shape):
        raise OpFailed(OpCode.EINVAL, f"input {name!r}: 'shape' must be a list of sizes")
    count = 1
    for size in shape:
        count *= size
    if count * dtype.itemsize != view.nbytes:
        raise OpFailed(
            OpCode.EINVAL,
            f"input {name!r}: {shape} of {dtype} is {count * dtype.itemsize} bytes,"
            f" {view.nbytes} came",
        )
    return np.frombuffer(view, dtype).reshape(shape)


def _output_names(session: onnxruntime.InferenceSession, wanted: Any) -> list[str]:
    known = [output.name for output in session.get_outputs()]
    if wanted is None:
        return known
    if not isinstance(wanted, list) or not wanted or not all(name in known for name in wanted):
        raise OpFailed(OpCode.EINVAL, f"'outputs' must name some of {', '.join(known)}")
    return list(wanted)


OPERATIONS = (Onnx(),)
