"""The reports of a kernel's bounds checks, on the device.

A translated kernel takes three things more than the user wrote (`kernels/translate.py`): a memory
for its report, a zero, and the bytes of each memory that it was given.
"""

from __future__ import annotations

from collections.abc import Sequence

from operations.kernels.source import GROUP_ITEMS_MAX, KernelSource
from operations.kernels.translator.translate import KernelSignature
from remote_gpu.wire.errors import invalid
from remote_gpu.wire.graphs import Scalar
from remote_gpu.worker.backends.base import Backend, Bound, DeviceMemory, Kernel, Program
from remote_gpu.worker.memory.quota import Quota

_WORD_BYTES = 4
_REPORT_BYTES = _WORD_BYTES * GROUP_ITEMS_MAX


class Bounds:
    """The report of one lane. Not thread-safe."""

    def __init__(self, backend: Backend) -> None:
        """Its 32 KiB are not counted in the lease's quota. Raises OpFailed(ENOMEM)."""
        self._memory: DeviceMemory = backend.allocate(Quota(), _REPORT_BYTES)

    def kernel(
        self, program: Program, signature: KernelSignature, arguments: Sequence[Bound]
    ) -> Kernel:
        """A kernel of a translated source with all its arguments. Raises OpFailed(EINVAL)."""
        name = signature.name
        for parameter, argument in zip(signature.parameters, arguments, strict=True):
            if not isinstance(argument, Scalar) and argument.size < parameter.bytes_min:
                message = f"the memory has {argument.size} bytes, one element {parameter.bytes_min}"
                raise invalid(f"kernel {name!r}: {parameter.name!r}: {message}")
        sizes = [
            Scalar("ulong", argument.size)
            for argument in arguments
            if not isinstance(argument, Scalar)
        ]
        return program.kernel(
            signature.entry, [*arguments, self._memory, Scalar("ulong", 0), *sizes]
        )

    def check(self, source: KernelSource) -> None:
        """Read the report, after all work ended. Raises OpFailed(EINVAL) naming kernel and line."""
        report = bytes(self._memory.read())
        if not any(report):
            return
        self._memory.write(memoryview(bytes(_REPORT_BYTES)))
        bits = 0
        for at in range(0, _REPORT_BYTES, _WORD_BYTES):
            bits |= int.from_bytes(report[at : at + _WORD_BYTES], "little")
        raise invalid(source.fault(bits))

    def close(self) -> None:
        """Free the memory."""
        self._memory.close()
