"""Promises: a run is admitted with a plan that meets its objectives, or refused at once.

The plan books a device and a start for each step. Ordinary requests run in front of bookings, never
into them. Without promises the oldest request that fits is served.

No bound on the wait of a request without a promise: promised runs may take all devices.
"""

from __future__ import annotations

from gpu_scheduler.core.admission.slo.plan import PICKS
from gpu_scheduler.core.queue.booked_service import BookingPolicy
from gpu_scheduler.core.queue.policy import Admission, PromiseAsked
from gpu_scheduler.core.queue.promising import Promising
from gpu_scheduler.core.queue.view import View
from gpu_scheduler.policy_parameters import PolicyParameter


class Promised(BookingPolicy):
    """Admission by the frontier of each run and the calendars of a sample of devices."""

    summary = "promised runs at their booked times; between them the oldest request that fits"
    parameters = (
        PolicyParameter(
            name="pick",
            meaning="of the plans in time: least device time, any (the thesis), first end, or cost",
            default=PICKS[0],
            choices=PICKS,
        ),
        PolicyParameter(
            name="sample",
            meaning="available devices of each kind and model that one plan looks at",
            default=8.0,
            at_least=1.0,
            at_most=1024.0,
        ),
        PolicyParameter(
            name="quantile",
            meaning="the quantile of learned times that a promise counts with",
            default=0.95,
            at_least=0.5,
            at_most=1.0,
        ),
    )

    def admit(self, view: View, asked: PromiseAsked) -> Admission:
        promising = Promising(
            view,
            asked,
            quantile=view.number("quantile"),
            sample=int(view.number("sample")),
            pick=str(view.values["pick"]),
        )
        return promising.answer()


POLICY = Promised()
