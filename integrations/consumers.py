"""Libraries that take an executor, with `orchgpu.Executor`: Adaptive, and Dask's threads."""

from __future__ import annotations

import adaptive
import dask
from functions import bump

import orchgpu


def sampled(points: int) -> dict[float, float]:
    """Adaptive's learner chooses points of the curve, and the executor computes them."""
    learner = adaptive.Learner1D(bump, bounds=(-1.0, 1.0))
    with orchgpu.Executor() as executor:
        adaptive.BlockingRunner(learner, npoints_goal=points, executor=executor, ntasks=4)
    return dict(learner.data)


def summed(values: list[float]) -> float:
    """Dask's graph runs here, in threads; its nodes are jobs."""
    nodes = [dask.delayed(orchgpu.call)("bump", value) for value in values]
    return float(dask.delayed(sum)(nodes).compute(scheduler="threads", num_workers=4))


def refused() -> str:
    """Dask's own tasks are code, and stay here."""
    with orchgpu.Executor() as executor, dask.config.set(scheduler=executor):
        try:
            dask.delayed(sum)([1, 2]).compute()
        except TypeError as error:
            return str(error)
    return ""


if __name__ == "__main__":
    curve = sampled(9)
    assert len(curve) >= 9, curve
    assert all(abs(y - bump(x)) < 1e-12 for x, y in curve.items()), curve
    total = summed([0.0, 0.5])
    assert abs(total - bump(0.0) - bump(0.5)) < 1e-12, total
    assert "nor has it @orchgpu.function" in refused()
