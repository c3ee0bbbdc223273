"""`onnx`: runs a model with ONNX Runtime on one thread; models stay loaded between calls."""

from __future__ import annotations

from collections.abc import Sequence

from operations.inference.model import (
    IMPLEMENTATION,
    ModelsOnCards,
    find_model,
    load_host_models,
    run_joined,
)
from remote_gpu import api
from remote_gpu.api import Arguments, Context, Outcome


class Onnx(api.CpuOperation):
    """Runs a model; without tensors it loads the model and describes its inputs and outputs.

    With `batch` the first dimension of every tensor counts independent items, and concurrent calls
    of the same model may be computed in one run.
    """

    name = "onnx"
    implementation = IMPLEMENTATION
    libraries: tuple[str, ...] = ("onnxruntime",)
    own_turns = True
    loads = ("model",)
    limits = api.Limits(inputs_max=32, input_bytes_max=1 << 32)
    signature = api.Signature(
        arguments=(
            api.Text(
                name="model", meaning="`data:NAME`, `data:NAME/FILE` or a registered `sha256:…`"
            ),
            api.Structure(
                name="inputs",
                meaning="name and shape of each tensor, in their order",
                rule='a list of {"name", "shape"}',
                default=None,
            ),
            api.Structure(
                name="outputs", meaning="absent: all", rule="a list of names", default=None
            ),
            api.Flag(name="batch", meaning="items are independent: calls may be joined"),
        ),
        inputs=(api.Port(name="tensors", dtype="the model's", shape="`inputs`"),),
        outputs=(api.Port(name="results", dtype="the model's", shape="`outputs` of the values"),),
        values='`outputs`: [{"name", "dtype", "shape"}]; `joined`: calls in the run, with `batch`;'
        " without tensors `inputs` and `outputs` of the model, null for a free size",
    )

    def prepare(self, context: Context) -> None:
        """Load every `.onnx` file of the host data."""
        load_host_models(context)

    def load(self, context: Context, args: Arguments) -> None:
        find_model(context, self.signature.read(args)["model"])

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        args = self.signature.read(args)
        model = find_model(context, args["model"])
        if not inputs and not args["inputs"]:
            return {
                "inputs": [tensor.to_meta() for tensor in model.inputs.values()],
                "outputs": [tensor.to_meta() for tensor in model.outputs.values()],
            }, []
        feeds = model.feeds(args["inputs"], inputs)
        names = model.output_names(args["outputs"])
        if args["batch"]:
            results, joined = run_joined(context, model, feeds, names)
            values: api.Meta = {"joined": joined}
        else:
            with context.turn():
                results, values = model.run(feeds, names), {}
        described = [
            {"name": name, "dtype": str(result.dtype), "shape": list(result.shape)}
            for name, result in zip(names, results, strict=True)
        ]
        with context.quota.held(sum(result.nbytes for result in results)):
            return values | {"outputs": described}, list(results)


class CudaOnnx(ModelsOnCards, Onnx):
    """`onnx` on an NVIDIA card."""


OPERATIONS = (Onnx(), CudaOnnx())
