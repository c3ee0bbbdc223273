"""Moments of jobs and the measures of them, by the names of HARDLESS (Werner, Schirmer 2022). Pure.

RStart  uploaded            NStart  received by an orchestrator   EStart  computation starts
REnd    finished            NEnd    its result is seen            EEnd    computation ends

RLat = REnd − RStart        DLat = EStart − RStart                ELat = EEnd − EStart
RSuccess = number of successes                  RFast = successes per second of the last 10 s
"""

from __future__ import annotations

from collections.abc import Mapping

MOMENTS = ("RStart", "NStart", "EStart", "EEnd", "NEnd", "REnd")
#: Latency → its first and its last moment.
LATENCIES: Mapping[str, tuple[str, str]] = {
    "RLat": ("RStart", "REnd"),
    "DLat": ("RStart", "EStart"),
    "ELat": ("EStart", "EEnd"),
}
#: RFast counts the successes of so long, in unscaled seconds.
RFAST_WINDOW_S = 10.0


def moments_of(
    uploaded_s: float, steps: Mapping[str, float], computation: Mapping[str, float]
) -> dict[str, float | None]:
    """The six moments of a job, wall clock; None for one that did not happen.

    `steps`: times of its record by step; `computation`: times of its result, EStart and EEnd.
    """
    return {
        "RStart": uploaded_s,
        "NStart": steps.get("RECEIVED"),
        "EStart": computation.get("EStart"),
        "EEnd": computation.get("EEnd"),
        "NEnd": steps.get("COMMITTED"),
        "REnd": steps.get("ENDED"),
    }


def latencies(moments: Mapping[str, float | None]) -> dict[str, float | None]:
    """RLat, DLat and ELat in seconds; None where one of their moments is missing."""
    found: dict[str, float | None] = {}
    for name, (first, last) in LATENCIES.items():
        start_s, end_s = moments.get(first), moments.get(last)
        found[name] = None if start_s is None or end_s is None else end_s - start_s
    return found
