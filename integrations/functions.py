"""Functions for the tests of the integrations: `orchgpu deploy integrations/functions.py`."""

from __future__ import annotations

import orchgpu
from lambda_functions.work import Work


@orchgpu.function(input="shout-in", output="shout-out", job={"attempts": 1}, memory=256, timeout=60)
def shout(work: Work) -> None:
    """Upper case of a text, as a file `<name>.loud`."""
    text = work.input.read_bytes()
    if b"fail" in text:
        raise ValueError("the text asks for it")
    print(f"shouted {len(text)} bytes")  # noqa: T201 - the log of its jobs
    (work.output_folder / f"{work.input.stem}.loud").write_bytes(text.upper())


@orchgpu.function(
    input="total-in",
    output="total-out",
    job={"attempts": 1},
    memory=256,
    timeout=60,
    values=True,
)
def total(value: list[float]) -> float:
    """The sum of a list."""
    return sum(value)


@orchgpu.function(
    input="bump-in", output="bump-out", job={"attempts": 1}, memory=256, timeout=60, values=True
)
def bump(x: float) -> float:
    """A curve with a narrow peak at 0."""
    return x + 0.01 / (0.01 + x * x)
