"""The time scale of a daemon's budget, from its environment."""

from __future__ import annotations

import os

from corekit.budget import Budget
from corekit.errors import invalid

#: Inherited by the daemons that a program starts (tests: 0.05).
SCALE_VARIABLE = "ORCHGPU_TIME_SCALE"


def budget_from_environment() -> Budget:
    """The budget to run with: `ORCHGPU_TIME_SCALE` (default 1) times the defaults, checked.

    Raises INVALID when the variable is not a number in (0, 100].
    """
    text = os.environ.get(SCALE_VARIABLE, "1")
    try:
        factor = float(text)
    except ValueError:
        raise invalid(f"{SCALE_VARIABLE}={text!r} is not a number") from None
    if not 0 < factor <= 100:
        raise invalid(f"{SCALE_VARIABLE}={text!r} must lie in (0, 100]")
    return Budget().scaled(factor).check()
