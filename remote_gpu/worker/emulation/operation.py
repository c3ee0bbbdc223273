"""An operation of emulated devices: it takes the stated time and is labelled in every result.

Its results are those of the host's CPU where the operation is implemented there, otherwise its
inputs; the implementation that each answer names states which. While a call runs, it holds a slot
of the device (a token of the device's time slices), so no more calls run at a time than it has.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.frames import Meta
from remote_gpu.worker.arguments import Arguments, Port, Signature
from remote_gpu.worker.emulation.devices import EmulatedDevice, Emulation, OperationTimes, call_s
from remote_gpu.worker.operation import Context, CpuOperation, Limits, Outcome
from remote_gpu.worker.registry import Registry

#: Of operations that return their inputs.
_ECHO_LIMITS = Limits(inputs_max=16)
_ECHO_SIGNATURE = Signature(
    inputs=(Port(name="any", meaning="up to 16 buffers"),),
    outputs=(Port(name="same", meaning="the inputs"),),
    values="`emulated`: device, times",
    extra=True,
)


class EmulatedOperation(CpuOperation):
    """One operation of all emulated devices of a host."""

    def __init__(
        self,
        name: str,
        emulation: Emulation,
        devices: Mapping[str, EmulatedDevice],
        on_cpu: CpuOperation | None,
        sleep: Callable[[float], None],
    ) -> None:
        """`devices`: by id; `on_cpu`: computes the results, None: they are the inputs."""
        self._sleep = sleep
        self.name = name
        self.kinds = tuple(sorted({d.kind.value for d in devices.values() if name in d.operations}))
        results = "the inputs" if on_cpu is None else f"those of {on_cpu.implementation}"
        self.implementation = f"emulated (results are {results})"
        self.signature = _ECHO_SIGNATURE if on_cpu is None else on_cpu.signature
        self.limits = _ECHO_LIMITS if on_cpu is None else on_cpu.limits
        self._emulation = emulation
        self._devices = devices
        self._on_cpu = on_cpu
        self.loads = (emulation.workload_argument,)

    def load(self, context: Context, args: Arguments) -> None:
        self._load(context, self._times(context)[1], args)

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        device, times = self._times(context)
        loading_s = self._load(context, times, args)
        started_s, began_s = time.time(), time.monotonic()
        values, results = self._results(context, args, inputs)
        left_s = call_s(self._emulation, device, self.name, args, inputs)
        left_s -= time.monotonic() - began_s
        self._sleep(max(0.0, left_s))
        emulated: Meta = {
            "device": context.device,
            "model": device.published_model,
            "loading_ms": loading_s * 1000,
            "started_s": started_s,
            "ended_s": time.time(),
        }
        if left_s < 0:  # the CPU needed more than the stated time
            emulated["late_ms"] = -left_s * 1000
        return {**values, "emulated": emulated}, results

    def _times(self, context: Context) -> tuple[EmulatedDevice, OperationTimes]:
        device = self._devices.get(context.device)
        times = None if device is None else device.operations.get(self.name)
        if device is None or times is None:
            message = f"operation {self.name!r} is not emulated on {context.device or context.kind}"
            raise OpFailed(OpCode.ENOTSUP, message)
        return device, times

    def _load(self, context: Context, times: OperationTimes, args: Arguments) -> float:
        """Load the workload of a call, once per worker; returns the seconds that it took."""
        loading_s = times.cold_ms * self._emulation.time_scale / 1000
        took_s = 0.0

        def load() -> bool:
            nonlocal took_s
            context.quota.reserve(times.memory_mib << 20)  # as long as the worker lives
            began_s = time.monotonic()
            self._sleep(loading_s)
            took_s = time.monotonic() - began_s
            context.warm.loading.count(times.memory_mib << 20)
            return True

        workload = args.get(self._emulation.workload_argument, "")
        context.warm.get(f"emulated:{context.device}:{self.name}:{workload}", load)
        return took_s

    def _results(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        if self._on_cpu is None:
            return {}, list(inputs)
        on_cpu = dataclasses.replace(context, kind="cpu", device="", within_turn=True)
        return self._on_cpu.run(on_cpu, args, inputs)


def emulate(
    registry: Registry,
    emulation: Emulation,
    ids: Sequence[str],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Replace all operations of the emulated kinds. `ids`: of the devices, in their order.

    Kernels of a real driver must never answer for an emulated device.
    """
    devices = dict(zip(ids, expanded(emulation), strict=True))
    for kind in sorted({device.kind.value for device in devices.values()}):
        registry.clear(kind)
    names = {name for device in devices.values() for name in device.operations}
    for name in sorted(names):
        on_cpu = [one for one in registry.all(name, "cpu") if not one.by_kernels]
        first = on_cpu[0] if on_cpu else None
        registry.add(EmulatedOperation(name, emulation, devices, first, sleep))


def expanded(emulation: Emulation) -> tuple[EmulatedDevice, ...]:
    """One entry for each device: an entry with `count` stands for several."""
    return tuple(device for device in emulation.devices for _ in range(device.count))
