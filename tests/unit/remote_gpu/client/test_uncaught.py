"""The traceback of an uncaught device error ends at the script's own line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOCAL = """import remote_gpu.client as gpu

def work(device):
    return device.op("nothing-of-the-kind")

with gpu.Local() as device:
    work(device)
"""
NOWHERE = "import remote_gpu.client as gpu\n\ndevice = gpu.connect({})\n"
POSTED = """import remote_gpu.client as gpu
device = gpu.Local()
graph = gpu.Graph("__kernel void f(__global float *x) { y = 1; }")
graph.launch("f", (1,), (1,), graph.inout("x", 4))
device.run(graph, x=bytes(4))
"""


def ended(script: str, folder: Path) -> list[str]:
    path = folder / "script.py"
    path.write_text(script)
    command = [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return [line for line in done.stderr.splitlines() if line.strip(" ^~")]


@pytest.mark.parametrize(
    ("script", "line"),
    [
        (LOCAL, 'return device.op("nothing-of-the-kind")'),
        (NOWHERE, "device = gpu.connect({})"),
        (POSTED, "device.run(graph, x=bytes(4))"),
    ],
)
def test_the_last_frame_is_the_programs(script: str, line: str, tmp_path: Path) -> None:
    lines = ended(script, tmp_path)
    assert lines[-2].strip() == line
    assert f'{tmp_path}/script.py", line' in lines[-3]
    assert lines[-1].startswith("remote_gpu.wire.errors.")
    assert "/remote_gpu/client/" not in "".join(lines)


def test_other_errors_and_other_hooks_are_unchanged(tmp_path: Path) -> None:
    lines = ended(f"{NOWHERE.replace('{})', '{}) if 0 else gpu.Local()')}int('x')\n", tmp_path)
    assert lines[-1] == "ValueError: invalid literal for int() with base 10: 'x'"
    own = "import sys\nsys.excepthook = lambda *_: print('mine', file=sys.stderr)\n"
    assert ended(own + NOWHERE, tmp_path) == ["mine"]
