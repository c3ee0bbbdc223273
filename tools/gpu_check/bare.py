"""A bare process on a device: it starts, runs one small kernel, reads the result and ends.

`python -m tools.gpu_check.bare KIND`. On `cuda` it needs the driver's library and nothing else.
"""

from __future__ import annotations

import ctypes
import sys

SOURCE = "__kernel void first(__global int *x) { x[get_global_id(0)] = 42; }"
KERNEL = "first"
RESULT = b"\x2a\0\0\0"
_PTX = b"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry first(.param .u64 x)
{
    .reg .b64 %a<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %a1, [x];
    cvta.to.global.u64 %a2, %a1;
    mov.u32 %r1, 42;
    st.global.u32 [%a2], %r1;
    ret;
}
"""


class DriverError(Exception):
    """A call of the driver failed."""


def by_driver() -> bytes:
    """The result by the driver's own interface."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *args: object) -> None:
        if status := getattr(cuda, name)(*args):
            raise DriverError(f"{name} returned {status}")

    device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    kernel, address = ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), _PTX)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, KERNEL.encode())
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4))
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(address))
    call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
    result = ctypes.create_string_buffer(4)
    call("cuMemcpyDtoH_v2", result, address, ctypes.c_size_t(4))
    return result.raw


def by_backend(kind: str) -> bytes:
    """The result on another kind of device."""
    # only here: the imports are a part of the measured time of these kinds alone
    from remote_gpu.worker.memory.quota import Quota
    from tools.gpu_check.first_device import first_backend

    backend = first_backend(kind)
    memory = backend.allocate(Quota(), 4)
    backend.build(SOURCE).kernel(KERNEL, [memory]).enqueue((1,), (1,))
    backend.finish()
    return bytes(memory.view if memory.view is not None else memory.read())


if __name__ == "__main__":
    found = by_driver() if sys.argv[1] == "cuda" else by_backend(sys.argv[1])
    sys.exit(0 if found == RESULT else f"the kernel stored {found!r}")
