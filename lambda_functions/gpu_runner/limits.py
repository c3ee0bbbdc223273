"""The time limits of one run, within what Lambda gives the invocation."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from contract.record import JsonObject
from contract.states import Reason
from contract.timing import CAP_SLACK_S, kept_back

#: The part of the time kept back that lies between SIGTERM and SIGKILL to the script.
GRACE_PART = 0.4
GRACE_S_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """The ends of a run's phases, on the monotonic clock."""

    script_s: float  #: SIGTERM to the script
    grace_s: float  #: from SIGTERM to SIGKILL
    end_s: float  #: Lambda ends the function
    origin: str  #: the rule behind `script_s`, and what to do, for people
    start_s: float  #: from here the function's own time counts
    spare_s: float = 0.0  #: so much later it may begin
    reason: Reason = Reason.TIMEOUT  #: of a run whose script reaches `script_s`

    @classmethod
    def within(
        cls, remaining_s: float, threshold_s: float = 0.0, advance_s: float = 0.0
    ) -> TimeLimits:
        """The limits at the start of an invocation that has `remaining_s` left.

        `advance_s`: of them, for the wait for a device; see `begun`.
        """
        now_s = time.monotonic()
        spare_s = min(advance_s, remaining_s / 2)  # a timeout that was lowered by hand has less
        remaining_s -= spare_s
        reserve_s, rule = kept_back(remaining_s, threshold_s)
        kept = f"timeout_threshold keeps {reserve_s:g} s"
        if rule != "timeout_threshold":
            kept = f"{'half' if rule == 'half' else f'{reserve_s:.1f} s'} is kept"
        return cls(
            origin=f"of the {remaining_s:.0f} s that the function's timeout gives a run, {kept} for"
            " outputs and result; set a longer `timeout`",
            script_s=now_s + remaining_s - reserve_s,
            grace_s=min(GRACE_S_MAX, GRACE_PART * reserve_s),
            end_s=now_s + remaining_s,
            start_s=now_s,
            spare_s=spare_s,
        )

    def begun(self) -> TimeLimits:
        """The limits of a run that has its device from now on: its wait took none of its time."""
        late_s = min(self.spare_s, time.monotonic() - self.start_s)
        return replace(
            self,
            script_s=self.script_s + late_s,
            end_s=self.end_s + late_s,
            start_s=self.start_s + late_s,
            spare_s=self.spare_s - late_s,
        )

    def capped(self, cost: JsonObject | None, now_s: float) -> TimeLimits:
        """The same for a job with a cap of its cost: its script ends when the cap is reached.

        `cost`: that of the envelope; `now_s`: wall clock. Older orchestrators send no cap.
        """
        cap_usd, usd_per_s = (cost or {}).get("cap_usd"), (cost or {}).get("usd_per_s")
        if cost is None or not cap_usd or not usd_per_s:
            return self
        left_s = (cap_usd - cost["paid_usd"]) / usd_per_s - (now_s - cost["since_s"])
        end_s = time.monotonic() + max(0.0, left_s)
        if end_s >= self.script_s:
            return self
        origin = f"the cap of {cap_usd:.6g} USD is reached (`max_cost`); set a higher one"
        return replace(self, script_s=end_s, origin=origin, reason=Reason.MAX_COST)

    @property
    def script_left_s(self) -> float:
        """Seconds from now that are the script's."""
        return max(0.0, self.script_s - time.monotonic())

    @property
    def cap_s(self) -> float:
        """Seconds from now after which the hosts end the lease of the session."""
        return max(0.0, self.end_s - time.monotonic()) + CAP_SLACK_S
