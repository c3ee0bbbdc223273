"""Names of devices that their drivers do not name, the same in monitors, hosts and workers."""

from __future__ import annotations

import re


def opencl_name(platform: str, number: int) -> str:
    """Device `number` of an OpenCL platform: `portable-computing-language0`."""
    return re.sub(r"\W+", "-", platform.lower()).strip("-") + str(number)
