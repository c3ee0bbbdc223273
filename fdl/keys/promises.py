"""The keys of promises: `slo:`, the objectives, and `times:`, what a job takes on a device."""

from __future__ import annotations

from fdl.schema.scalars import Duration, Number
from fdl.schema.schema import Block, Key, MapOf
from gpu_scheduler.promises import ANY_DEVICE, Slo, StepTimes

_USD_MAX = 1e6

SLO = Block(
    into=Slo,
    keys={
        "latency": Key(
            reader=Duration(),
            to="latency_s",
            about="From the upload of the input to the end of the job or run.",
        ),
        "cost": Key(
            reader=Number(high=_USD_MAX, unit="USD"),
            to="cost_usd",
            about="Of the job, or of all steps of the run: functions and devices.",
        ),
    },
)
_TIMES = Block(
    into=StepTimes,
    keys={
        "execution": Key(
            reader=Duration(),
            to="execution_s",
            required=True,
            about="From the grant of the device to the end of the work there: the start of the"
            " function is part of it.",
        ),
        "loading": Key(
            reader=Duration(),
            to="loading_s",
            about="Before it, on a device without a warm worker.",
        ),
        "release": Key(
            reader=Duration(), to="release_s", about="After it, until the device is free again."
        ),
        "cost": Key(
            reader=Number(high=_USD_MAX, unit="USD"),
            to="cost_usd",
            about="Of one job; without it, its time at the price of function and device.",
        ),
        "batch_item": Key(
            reader=Duration(),
            to="batch_item_s",
            about="Added to an execution by each further member of a batch.",
            default="the job joins none",
        ),
    },
)
TIMES = MapOf(
    item=_TIMES,
    key_pattern=r"\*|[A-Za-z0-9][A-Za-z0-9 ._/()+-]{0,127}",
    key_what=f"a model or kind of device, or {ANY_DEVICE!r}",
)
