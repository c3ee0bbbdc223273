"""S3 on a bad day: false 404s, 503 SlowDown, lost answers, 409s of writes and of bucket settings.

Sources: S3 user guide, "Enabling versioning on buckets" (404 NoSuchKey for up to 15 minutes after
it is first enabled), "Best practices design patterns: optimizing performance" and "Error responses"
(503 SlowDown, 500 InternalError: repeat; 409 OperationAborted: a conflicting conditional operation
is in progress), "How to prevent object overwrites with conditional writes" (409
ConditionalRequestConflict: repeat; 412 once the object is there: also after a write whose answer
was lost), "Buckets" (a deleted bucket's name takes a while). terraform-provider-aws repeats
OperationAborted in `s3/bucket.go`.
"""

from __future__ import annotations

from local_cloud.model.errors import CloudError
from local_cloud.model.weather.propagation import Propagation
from local_cloud.model.weather.stream import WeatherStream


class LostAnswerError(CloudError):
    """A write that was made; its answer is an error."""


class StorageRefusals:
    """The refusals of object calls and bucket calls."""

    def __init__(self, stream: WeatherStream) -> None:
        self._stream = stream
        self._versioned_at_s: dict[str, float] = {}
        self._busy = Propagation(stream, "bucket busy")
        self._names = Propagation(stream, "bucket name in use")

    # --- objects

    def check_load(self) -> None:
        """Raises SlowDown."""
        if self._stream.happens("slow down", self._stream.weather.slow_down_rate):
            raise CloudError("SlowDown", 503, "Please reduce your request rate.")

    def check_conditional(self) -> None:
        """Raises ConditionalRequestConflict, before a conditional write."""
        if self._stream.happens("write conflict", self._stream.weather.write_conflict_rate):
            raise CloudError(
                "ConditionalRequestConflict",
                409,
                "The conditional request cannot succeed due to a conflicting operation against this"
                " resource.",
            )

    def lose_answer(self) -> None:
        """Raises LostAnswerError, after a write."""
        if self._stream.happens("answer lost", self._stream.weather.lost_answer_rate):
            raise LostAnswerError(
                "InternalError", 500, "We encountered an internal error. Please try again."
            )

    def versioning_enabled(self, now_s: float, bucket: str) -> None:
        """Versioning was enabled for the first time."""
        self._versioned_at_s.setdefault(bucket, now_s)

    def hides(self, now_s: float, bucket: str, written_at_s: float) -> bool:
        """Whether a read of an object of that date is a false 404."""
        since_s = self._versioned_at_s.get(bucket)
        if since_s is None or written_at_s < since_s:
            return False
        if now_s - since_s >= self._stream.scaled_s(self._stream.weather.versioning_s):
            return False
        return self._stream.happens("false 404", self._stream.weather.versioning_rate)

    # --- buckets

    def check_settings(self, now_s: float, bucket: str) -> None:
        """Raises OperationAborted, before a change of a bucket's settings."""
        weather = self._stream.weather
        if not self._busy.settled(now_s, bucket) and self._stream.happens(
            "bucket busy", weather.bucket_busy_rate
        ):
            raise _aborted()
        self._busy.changed(now_s, bucket, weather.bucket_busy_s)

    def check_name(self, now_s: float, bucket: str) -> None:
        """Raises OperationAborted for the name of a bucket that was deleted a moment ago."""
        if not self._names.known(now_s, bucket):
            raise _aborted()

    def deleted(self, now_s: float, bucket: str) -> None:
        """A bucket was deleted."""
        self._versioned_at_s.pop(bucket, None)
        self._names.changed(now_s, bucket, self._stream.weather.bucket_gone_s)


def _aborted() -> CloudError:
    return CloudError(
        "OperationAborted",
        409,
        "A conflicting conditional operation is currently in progress against this resource. Please"
        " try again.",
    )
