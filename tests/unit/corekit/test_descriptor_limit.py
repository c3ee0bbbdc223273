"""Daemons open as many descriptors as they may; in a process of its own, for the limit stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource
from corekit.aio.process import raise_descriptor_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_descriptor_limit({most}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "most", "after"),
    [(64, 512, 1000, 512), (64, 512, 256, 256), (512, 512, 256, 512), (300, 512, 256, 300)],
)
def test_the_soft_limit_grows_to_the_hard_one_and_never_shrinks(
    soft: int, hard: int, most: int, after: int
) -> None:
    program = PROGRAM.format(soft=soft, hard=hard, most=most)
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == [str(after)] * 2
