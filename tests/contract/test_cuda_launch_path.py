"""The CUDA backend through the real `cuda.bindings`, over a stand-in for the driver.

`cuda_driver.c` is compiled to a libcuda.so.1 in host memory; what it checks are arguments, sizes,
order and errors of calls. Nothing here says what a card does with them.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc")
#: The second one only has to be there: cuBLAS needs it.
LIBRARIES = {
    "libcuda.so.1": "cuda_driver.c",
    "libcublasLt.so.13": "cublas.c",
    "libcublas.so.13": "cublas.c",
}
pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="the stand-in needs a C compiler"),
    pytest.mark.skipif(
        importlib.util.find_spec("cuda") is None, reason="the cuda extra is not installed"
    ),
]


def test_the_backend_calls_the_driver_as_it_should(tmp_path: Path) -> None:
    for target, source in LIBRARIES.items():
        command = [str(COMPILER), "-shared", "-fPIC", "-o", str(tmp_path / target)]
        subprocess.run([*command, str(FOLDER / source), "-ldl"], check=True)
    path = f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    log = tmp_path / "launches"
    done = subprocess.run(
        [sys.executable, FOLDER / "cuda_program.py"],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": path,
            "FAKE_CUDA_LOG": str(log),
            "FAKE_CUDA_COPIES": str(tmp_path / "copies"),
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr
    assert log.read_text().splitlines() == [
        "scale 3145733,1,1 1,1,1 0",  # kernel, blocks, threads, bytes shared
        *["nothing_ 3145733,1,1 1,1,1 0"] * 2,  # of a graph, by the real compiler
        "group_sum 2,2,1 4,3,1 60048 0",  # 40 and 60,000 bytes, both at multiples of 16
        "group_sum 1,1,1 2048,1,1 60048 0",
        "wild 1,1,1 1,1,1 0",
    ]
