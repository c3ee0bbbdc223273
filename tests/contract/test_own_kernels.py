"""The host's own kernels compile for every architecture of NVIDIA cards that is supported.

The compiler needs neither card nor driver. A kernel that keeps its registers in memory would be
several times slower, and nothing else would show it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import pytest

from remote_gpu.worker.operation import CpuOperation
from remote_gpu.worker.registry import load_registry

if TYPE_CHECKING:
    from remote_gpu.worker.backends.nvrtc import KernelFigures

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None, reason="the cuda extra is not installed"
)

#: Turing and Blackwell, and those between them in the soak: each takes 20 s of a core.
BETWEEN = [
    pytest.param(one, marks=pytest.mark.soak) for one in ("sm_80", "sm_86", "sm_89", "sm_90")
]
ARCHITECTURES = ("sm_75", *BETWEEN, "sm_100")
#: Of a work-item, by the architectures' limits.
REGISTERS_MAX = 255
#: Of the largest group that an own kernel is launched with.
GROUP_ITEMS_MAX = 256


@cache
def sources() -> dict[str, str]:
    """By their operations; those without macros are built together."""
    found = [
        (operation.name, source)
        for operation in load_registry().registered("cuda")
        if isinstance(operation, CpuOperation)
        for source in operation.kernel_sources()
    ]
    assert {name for name, _ in found} > {"aes_cbc", "map", "reduce", "sequence_search", "sgemm"}
    alone = {
        f"{name} {number}": source
        for number, (name, source) in enumerate(found)
        if "#define" in source
    }
    together = dict.fromkeys(source for _, source in found if "#define" not in source)
    return {**alone, "generated": "\n".join(together)}


@cache
def compiled(name: str, architecture: str) -> list[KernelFigures]:
    """The figures of all kernels of one of `sources`."""
    from remote_gpu.worker.backends.nvrtc import figures_of  # its library is an extra

    return figures_of(sources()[name], architecture)


def check(name: str, architecture: str, record_property: Callable[[str, object], None]) -> None:
    figures = compiled(name, architecture)
    assert len(figures) == sources()[name].count("__kernel void"), (name, figures)
    for found in figures:
        record_property(found.kernel, f"{found.registers} registers")
        assert found.spilled_bytes == 0, found
        assert 0 < found.registers <= REGISTERS_MAX, found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_and_keeps_its_registers(
    architecture: str, record_property: Callable[[str, object], None]
) -> None:
    for name in sources():
        check(name, architecture, record_property)


def test_two_groups_of_every_kernel_fit_one_multiprocessor() -> None:
    """A multiprocessor has 65,536 registers; with one group its memory latency would show."""
    for name in sources():
        for found in compiled(name, "sm_75"):
            assert found.registers * GROUP_ITEMS_MAX * 2 <= 65_536, found
            assert found.shared_bytes <= 48 << 10, found
