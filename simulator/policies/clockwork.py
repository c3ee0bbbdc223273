"""Naive Clockwork, a baseline of the thesis: a whole run on one kind of device, or refused.

Admission as under `slo`, but of the placements only those with all steps on one kind and model, on
every available device, and the plan that ends first (or costs least) is taken. Its bookings are
served as under `slo`.
"""

from __future__ import annotations

from gpu_scheduler.api import (
    Admission,
    BookingPolicy,
    PolicyParameter,
    PromiseAsked,
    Promising,
    View,
)

_EVERY_DEVICE = 1024


class Clockwork(BookingPolicy):
    """Admission of runs with all steps on one kind of device."""

    summary = "promised runs with all steps on one kind of device, then the oldest request"
    parameters = (
        PolicyParameter(
            name="pick",
            meaning="of the plans in time: that which ends first, or costs least",
            default="earliest",
            choices=("earliest", "cheapest"),
        ),
    )

    def admit(self, view: View, asked: PromiseAsked) -> Admission:
        pick = str(view.values["pick"])
        return Promising(view, asked, pick=pick, sample=_EVERY_DEVICE).answer(whole=True)


POLICY = Clockwork()
