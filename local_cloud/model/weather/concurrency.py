"""Limits of the account: concurrency that other functions use up, rates of calls.

Sources: Lambda developer guide, "Understanding Lambda function scaling" (one limit for all
functions of a region; 429 TooManyRequestsException), and "How Lambda handles errors and retries
with asynchronous invocation" (a throttled event waits from 1 s, doubled up to 5 min, until its
age); "Lambda quotas", API requests (15 control-plane requests a second);
terraform-provider-aws `lambda/function.go` repeats "throttled by EC2".
"""

from __future__ import annotations

from local_cloud.model.errors import CloudError, refused
from local_cloud.model.weather.stream import WeatherStream


class AccountConcurrency:
    """The other functions of the account: busy for a while, then idle for a while."""

    def __init__(self, stream: WeatherStream) -> None:
        self._stream = stream
        self._busy_from_s = 0.0
        self._busy_to_s = -1.0

    def busy(self, now_s: float) -> bool:
        """True while no concurrency is left."""
        weather = self._stream.weather
        if weather.throttle_s[1] <= 0:
            return False
        if self._busy_to_s < 0:
            self._busy_to_s = now_s
        while now_s >= self._busy_to_s:
            pause_s = self._stream.delay_s("throttled", weather.throttle_pause_s)
            self._busy_from_s = self._busy_to_s + pause_s
            self._busy_to_s = self._busy_from_s + self._stream.delay_s(
                "throttled", weather.throttle_s
            )
        return now_s >= self._busy_from_s


def check_control(stream: WeatherStream) -> None:
    """Raises TooManyRequestsException: too many changes of functions at once."""
    if stream.happens("change throttled", stream.weather.control_throttle_rate):
        raise CloudError("TooManyRequestsException", 429, "Rate exceeded")


def check_network(stream: WeatherStream) -> None:
    """Raises InvalidParameterValueException: Lambda made too many calls of EC2 for functions."""
    if stream.happens("network throttled", stream.weather.network_throttle_rate):
        raise refused(
            "InvalidParameterValueException",
            "Your request has been throttled by EC2, please make sure you have enough API rate"
            " limit. EC2 Error Code: RequestLimitExceeded. EC2 Error Message: Request limit"
            " exceeded.",
        )


def throttled() -> CloudError:
    """Lambda's answer to a synchronous invocation without concurrency."""
    return CloudError("TooManyRequestsException", 429, "Rate Exceeded.")
