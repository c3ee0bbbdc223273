"""KNIX' two tenants on elastic shares, as a fluid: what the best possible rule would give."""

from __future__ import annotations

from benchmarks.pictures import Curve, Picture
from experiments.experiment import Evidence, Experiment, Found, Settings

#: Device-seconds of the small and of the large tenant, when the large one begins, and their shares.
SMALL_S, LARGE_S, LARGE_FROM_S = 650.0, 642.0, 70.0
SMALL_SHARE, LARGE_SHARE = 0.1, 0.9
#: Seconds at which each ends, as KNIX printed them.
THEIRS_SMALL_S, THEIRS_LARGE_S = 1300.0, 890.0


def run(settings: Settings) -> Found:
    large_end_s = LARGE_FROM_S + LARGE_S / LARGE_SHARE
    done_s = LARGE_FROM_S + (large_end_s - LARGE_FROM_S) * SMALL_SHARE
    small_end_s = large_end_s + SMALL_S - done_s
    settings.advance(1.0)
    figures = {
        "small_gain_pct": 100 * (1 - small_end_s / (SMALL_S / SMALL_SHARE)),
        "large_penalty_pct": 100 * ((large_end_s - LARGE_FROM_S) / (LARGE_S / LARGE_SHARE) - 1),
        "utilisation_pct": 100 * (SMALL_S + LARGE_S) / small_end_s,
    }
    picture = Picture(
        name="elastic-shares",
        title="Share of the device of a 10 % tenant and a 90 % tenant",
        x="seconds",
        y="% of the device",
        curves=(
            _steps("10 %", ((0, 100), (LARGE_FROM_S, 10), (large_end_s, 100), (small_end_s, 0))),
            _steps("90 %", ((0, 0), (LARGE_FROM_S, 90), (large_end_s, 0), (small_end_s, 0))),
            Curve(
                name="ends of KNIX",
                points=((THEIRS_LARGE_S, 90), (THEIRS_SMALL_S, 10)),
                theirs=True,
            ),
        ),
    )
    return Found(figures=figures, pictures=(picture,))


def _steps(name: str, changes: tuple[tuple[float, float], ...]) -> Curve:
    """A curve that keeps each value until the next change."""
    points: list[tuple[float, float]] = []
    for at_s, share in changes:
        if points:
            points.append((at_s, points[-1][1]))
        points.append((at_s, share))
    return Curve(name=name, points=tuple(points))


EXPERIMENT = Experiment(summary="elastic shares as a fluid", evidence=Evidence.ARITHMETIC, run=run)
