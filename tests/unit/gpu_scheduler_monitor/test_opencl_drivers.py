"""Which OpenCL driver is used where there are several, and under which name of the CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("pyopencl", reason="the opencl extra is not installed")

from gpu_scheduler.monitor.drivers.opencl_drivers import OpenClDriver, llvm_cpu, newest, platforms

POCL, INTEL = "Portable Computing Language", "Intel(R) OpenCL"


@pytest.mark.parametrize(
    ("drivers", "used"),
    [
        ([], ()),
        ([OpenClDriver(POCL, (3, 1)), OpenClDriver(POCL, (3,))], (0,)),
        ([OpenClDriver(POCL, (3,)), OpenClDriver(POCL, (3, 1))], (1,)),
        ([OpenClDriver(POCL, (3,)), OpenClDriver(POCL, (3,))], (0,)),
        (
            [OpenClDriver(INTEL, (2026,)), OpenClDriver(POCL, (3,)), OpenClDriver(POCL, (6, 0))],
            (0, 2),
        ),
        ([OpenClDriver(POCL, ()), OpenClDriver(POCL, (1, 8))], (1,)),
    ],
)
def test_of_one_name_the_newest_driver_is_used(
    drivers: list[OpenClDriver], used: tuple[int, ...]
) -> None:
    assert newest(drivers) == used


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("avx512f avx512bw avx512cd avx512dq avx512vl avx2 fma bmi1 bmi2 f16c", "skylake-avx512"),
        ("avx512f avx2 fma bmi1 bmi2 f16c movbe avx sse4_2 popcnt", "haswell"),
        ("avx sse4_2 popcnt sse2", "sandybridge"),
        ("sse2", "x86-64"),
        ("", "x86-64"),
    ],
)
def test_a_cpu_is_named_by_its_features(flags: str, name: str) -> None:
    assert llvm_cpu(flags.split()) == name.encode()


def test_no_device_has_a_name_twice() -> None:
    names = [
        (platform.name, number)
        for platform, devices in platforms()
        for number in range(len(devices))
    ]
    assert len(names) == len(set(names))
