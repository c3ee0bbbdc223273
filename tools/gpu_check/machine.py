"""The NVIDIA cards of this machine and their driver, by the driver's own libraries.

A child process asks: a broken driver may hang or end its process. It needs no package.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: A card that slept needs some seconds.
_ANSWER_S = 30.0
_NO_DEVICE = 100  #: CUDA_ERROR_NO_DEVICE
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  #: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…


@dataclass(slots=True)
class Card:
    """One device, as CUDA numbers them."""

    name: str
    memory_mib: int
    capability: str  #: such as 9.0


@dataclass(slots=True)
class Machine:
    """The cards of a machine, or the reasons why it has none."""

    cards: list[Card] = field(default_factory=list)
    driver: str = ""
    cuda: str = ""  #: the newest that the driver knows
    missing: list[str] = field(default_factory=list)  #: sentences: driver, device, library


def machine() -> Machine:
    """This machine, within seconds."""
    command = [sys.executable, "-m", __name__]
    root = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Machine(missing=[f"driver: it does not answer within {_ANSWER_S:g} s"])
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        return Machine(missing=[f"driver: a process that uses it ends with {done.returncode}"])
    return machine_of(json.loads(lines[-1]))


def machine_of(stored: dict[str, Any]) -> Machine:
    """A machine from its JSON form."""
    return Machine(**{**stored, "cards": [Card(**one) for one in stored["cards"]]})


def _ask() -> Machine:
    found = Machine(driver=_driver_version())
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        found.missing.append("device: /dev has no file nvidia0, nvidia1, …")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        found.missing.append(f"driver: {error}")
        return found
    status = cuda.cuInit(0)
    if status != 0:
        what = "device: the driver finds none" if status == _NO_DEVICE else "driver: it fails"
        found.missing.append(f"{what} (cuInit returned {status})")
        return found
    number = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    found.cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    cuda.cuDeviceGetCount(ctypes.byref(number))
    found.cards = [_card(cuda, ordinal) for ordinal in range(number.value)]
    if found.cards:
        found.missing.clear()  # device files are not needed in every container
    return found


def _card(cuda: ctypes.CDLL, ordinal: int) -> Card:
    device, name, size = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    capability = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(str(value.value))
    return Card(name.value.decode(errors="replace"), size.value >> 20, ".".join(capability))


def _driver_version() -> str:
    """By NVML; "" without it."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    text = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlSystemGetDriverVersion(text, len(text)) != 0:
        return ""
    return text.value.decode(errors="replace")


if __name__ == "__main__":
    print(json.dumps(asdict(_ask())))
