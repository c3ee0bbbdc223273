"""A call of a model that may join the run of other calls (dynamic batching)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.inference.model import Model
from remote_gpu.worker.memory.arrays import Array
from remote_gpu.worker.operation import Context


def run_joined(
    context: Context, model: Model, feeds: Mapping[str, Array], outputs: Sequence[str]
) -> tuple[list[Array], int]:
    """The results, and the number of calls in the run. Raises OpFailed(EINVAL) unless every tensor
    of the call has the same number of items."""
    if not model.joinable:
        message = "'batch' needs a model whose tensors all have a free first dimension"
        raise OpFailed(OpCode.EINVAL, message)
    counts = {array.shape[0] if array.ndim else 0 for array in feeds.values()}
    if len(counts) != 1 or 0 in counts or len(feeds) != len(model.inputs):
        raise OpFailed(OpCode.EINVAL, "'batch' needs every input, with the same number of items")
    if context.within_turn:
        return model.run(feeds, outputs), 1
    return model.batcher.run(
        feeds,
        outputs,
        context.turn_of_batch,
        context.quota.held,
        context.batch_wait_s,
        context.caller,
        context.batch_items_max,
    )
