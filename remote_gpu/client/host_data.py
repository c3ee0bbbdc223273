"""A data set beside the device, for functions that run elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from remote_gpu.client.graph import Operating


class HostData(str):
    """The name of a data set, as operations take it (`database=device.data("proteins")`).

    `files`: bytes by path, of the first 500 files; none of a folder of the host's operator, which
    operations alone read. The path of a set of one file is "".
    """

    __slots__ = ("_device", "files", "sha256")

    def __new__(cls, device: Operating, name: str) -> HostData:
        """Raises OpFailed(ENOENT) for data that the host lacks."""
        made = super().__new__(cls, name)
        found = device.op("data.open", name=name).values
        made._device = device
        made.files = found["files"]
        made.sha256 = found["sha256"]
        return made

    _device: Operating
    files: Mapping[str, int]
    sha256: str  #: of its content; "" = not known

    def model(self, file: str = "") -> str:
        """A model of it, as operations take it: `model=device.data("weights").model("a.onnx")`."""
        return f"data:{self}/{file}" if file else f"data:{self}"

    def read(self, file: str = "", offset: int = 0, size: int = 1 << 30) -> memoryview:
        """At most `size` bytes of a file, over the network. Raises OpFailed: ENOENT, EINVAL for
        data of the operator, ENOMEM where the lease has not so much memory."""
        found = self._device.op("data.read", name=str(self), file=file, offset=offset, size=size)
        part: memoryview = found.buffers[0]
        return part
