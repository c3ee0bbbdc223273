"""OpenCL drivers that this process uses: the newest of each name.

A machine may have a driver of the system (`/etc/OpenCL/vendors`, Debian's `pocl-opencl-icd`) and
the one of the wheel `pocl-binary-distribution`. OpenCL lists both, each with the same CPU; the
device would be offered twice, under one name.

Importing this module loads every driver, and a driver may end its process (PoCL does where it
finds no memory for itself): import it in a child process, or after a child has tried.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pyopencl as cl

from gpu_scheduler.constraints import Version, parse_version

_CPUINFO = Path("/proc/cpuinfo")
#: The build of PoCL in the wheel, by its driver version and by what it reports for a CPU that its
#: compiler (LLVM 14, of 2022) does not know, as AMD's from Zen 4 on.
_WHEEL_VERSION, _UNKNOWN_CPU = "3.0-rc2", b"generic"
#: Where that build keeps two strings of a device: the compiler's target, then its CPU.
_TARGET_OFFSET, _CPU_OFFSET = 632, 640
_TARGET = b"x86_64-unknown-linux-gnu"
#: Names that LLVM 14 knows, the most capable first, with flags of `/proc/cpuinfo` that they need.
_LLVM_CPUS = (
    (b"skylake-avx512", "avx512f avx512bw avx512cd avx512dq avx512vl avx2 fma bmi1 bmi2"),
    (b"haswell", "avx2 fma bmi1 bmi2 f16c movbe"),
    (b"sandybridge", "avx sse4_2 popcnt"),
    (b"x86-64", ""),
)

_lasting: list[ctypes.Array[ctypes.c_char]] = []  # drivers hold pointers to these


class OpenClDriver(NamedTuple):
    """One platform with devices."""

    name: str
    version: Version  #: version of the driver, not of OpenCL


def newest(drivers: Iterable[OpenClDriver]) -> tuple[int, ...]:
    """Indices of the drivers to use, in their order: for each name the newest, the first of equals.

    Pure.
    """
    best: dict[str, tuple[int, OpenClDriver]] = {}
    for index, driver in enumerate(drivers):
        known = best.get(driver.name)
        if known is None or driver.version > known[1].version:
            best[driver.name] = (index, driver)
    return tuple(sorted(index for index, _ in best.values()))


def llvm_cpu(flags: Iterable[str]) -> bytes:
    """The best name in LLVM 14 for a CPU with these flags of `/proc/cpuinfo`. Pure."""
    known = frozenset(flags)
    return next(name for name, needed in _LLVM_CPUS if known.issuperset(needed.split()))


def platforms() -> list[tuple[cl.Platform, list[cl.Device]]]:
    """Platforms with their devices, without older drivers of the same name.

    No driver at all: []. Raises pyopencl.Error where a driver fails.
    """
    with contextlib.suppress(cl.LogicError):  # PLATFORM_NOT_FOUND_KHR: no driver at all
        found = [(platform, platform.get_devices()) for platform in cl.get_platforms()]
        found = [(platform, devices) for platform, devices in found if devices]
        drivers = [
            OpenClDriver(platform.name, parse_version(devices[0].driver_version))
            for platform, devices in found
        ]
        chosen = [found[index] for index in newest(drivers)]
        for _, devices in chosen:
            for device in devices:
                _name_the_cpu(device)
        return chosen
    return []


def _name_the_cpu(device: cl.Device) -> None:
    """Set a CPU that the compiler of the wheel's PoCL knows, where it did not recognise this one.

    That build passes LLVM's name of an unknown CPU, `generic`, to clang, which refuses it for
    x86-64, so no kernel builds on a CPU newer than 2022; no setting of PoCL changes the name.
    Later releases choose by the CPU's features, as this does. Other builds are not changed: both
    strings must be where this build has them.
    """
    if device.driver_version != _WHEEL_VERSION or not device.version.endswith("-generic"):
        return
    if _pointed(device.int_ptr + _TARGET_OFFSET) != _TARGET:
        return
    field = ctypes.c_char_p.from_address(device.int_ptr + _CPU_OFFSET)
    if field.value != _UNKNOWN_CPU:
        return
    flags = re.search(r"^flags\s*:(.*)$", _CPUINFO.read_text(encoding="ascii"), re.MULTILINE)
    name = ctypes.create_string_buffer(llvm_cpu(flags[1].split() if flags else ()))
    _lasting.append(name)
    field.value = ctypes.addressof(name)  # type: ignore[assignment]  # a pointer is taken as well


def _pointed(address: int) -> bytes | None:
    return ctypes.c_char_p.from_address(address).value
