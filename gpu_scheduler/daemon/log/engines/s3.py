"""A log in S3: one object per item, written with `If-None-Match: *`.

    s3://BUCKET/NAME[?region=…&owner=ACCOUNT&profile=…&endpoint=URL]

The bucket exists; one without versioning is best, as trimmed items disappear there. Reads of S3 are
consistent since 2020. An item costs a request to write and one to read, so snapshots come early.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.exceptions import ClientError

from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.log.engines._aws import CONNECTIONS, aws_errors, client_of, code_of
from gpu_scheduler.daemon.log.port import LogAddress, LogLimits, Snapshot
from gpu_scheduler.daemon.log.writer import read_again

LIMITS = LogLimits(item_bytes_max=4 * 2**20, snapshot_after=2_000, snapshot_bytes=2**20)
#: Items of one page of `read`, requested in parallel: a recovery's time is that of its requests.
PAGE_ITEMS = 16
#: S3's own limit of one deletion.
DELETED_AT_ONCE = 1000
#: Requests of one put that S3 refuses because another one for the same key is under way.
CONFLICT_TRIES = 8
_DIGITS = 20


class S3Log:
    """`gpu_scheduler.daemon.log.port.Log` in a bucket."""

    limits = LIMITS

    def __init__(self, client: Any, address: LogAddress) -> None:
        self._s3 = client
        self._where = address.text
        self._bucket: dict[str, str] = {"Bucket": address.host}
        if owner := address.options.get("owner"):
            self._bucket["ExpectedBucketOwner"] = owner
        self._items = f"{address.path}/items/"
        self._snapshots = f"{address.path}/snapshots/"
        self._pool: ThreadPoolExecutor | None = None

    def put_if_absent(self, seq: int, data: bytes) -> bool:
        if len(data) > LIMITS.item_bytes_max:
            raise invalid(f"an item has at most {LIMITS.item_bytes_max} bytes, got {len(data)}")
        for last_try in (*[False] * (CONFLICT_TRIES - 1), True):
            try:
                self._put(self._items, seq, data, IfNoneMatch="*")
                return True
            except ClientError as error:
                match code_of(error):
                    case "PreconditionFailed" | "412":
                        return False
                    case "ConditionalRequestConflict" if not last_try:
                        continue  # another writer's request is under way: one of both wins
                with aws_errors(self._where):
                    raise
        raise AssertionError("unreachable")

    def _put(self, prefix: str, seq: int, data: bytes, **conditions: str) -> None:
        """Raises botocore's ClientError for an answer of S3, AppError without one."""
        key = f"{prefix}{seq:0{_DIGITS}}"
        try:
            self._s3.put_object(**self._bucket, Key=key, Body=data, **conditions)
        except ClientError:
            raise
        except Exception:
            with aws_errors(self._where):
                raise

    def read(self, from_seq: int) -> Iterator[tuple[int, bytes]]:
        length = 1  # usually nothing is there, or one item
        while True:
            page = self._page(range(from_seq, from_seq + length))
            for seq, data in enumerate(page, from_seq):
                if data is None:
                    return
                yield seq, data
            from_seq += length
            length = min(4 * length, PAGE_ITEMS)

    def _page(self, seqs: Sequence[int]) -> list[bytes | None]:
        if len(seqs) == 1:
            return [self._item(seqs[0])]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(min(PAGE_ITEMS, CONNECTIONS), "log-read")
        return list(self._pool.map(self._item, seqs))

    def _item(self, seq: int) -> bytes | None:
        return self._object(f"{self._items}{seq:0{_DIGITS}}")

    def _object(self, key: str) -> bytes | None:
        return read_again(self._get, key)

    def _get(self, key: str) -> bytes | None:
        with aws_errors(self._where):
            try:
                data: bytes = self._s3.get_object(**self._bucket, Key=key)["Body"].read()
            except ClientError as error:
                if code_of(error) == "NoSuchKey":
                    return None
                raise
            return data

    def last_seq(self, after: int) -> int:
        return max(self._listed(self._items, after), default=after)

    def trim(self, to_seq: int, keep: Collection[int] = ()) -> None:
        kept = frozenset(keep)
        self._delete(
            self._items, [seq for seq in self._upto(self._items, to_seq) if seq not in kept]
        )
        self._delete(self._snapshots, list(self._upto(self._snapshots, to_seq - 1)))

    def _upto(self, prefix: str, last: int) -> Iterator[int]:
        for seq in self._listed(prefix):
            if seq > last:
                return
            yield seq

    def _listed(self, prefix: str, after: int = 0) -> Iterator[int]:
        """Numbers below a prefix, ascending, above `after`."""
        start = f"{prefix}{after:0{_DIGITS}}"
        while start:
            page = read_again(self._list, prefix, start)
            names = [found["Key"] for found in page.get("Contents", ())]
            for name in names:
                number = name.removeprefix(prefix)
                if number.isdigit():
                    yield int(number)
            start = names[-1] if page.get("IsTruncated") and names else ""

    def _list(self, prefix: str, start: str) -> Any:
        with aws_errors(self._where):
            return self._s3.list_objects_v2(**self._bucket, Prefix=prefix, StartAfter=start)

    def _delete(self, prefix: str, seqs: Sequence[int]) -> None:
        for start in range(0, len(seqs), DELETED_AT_ONCE):
            some = seqs[start : start + DELETED_AT_ONCE]
            keys = [{"Key": f"{prefix}{seq:0{_DIGITS}}"} for seq in some]
            with aws_errors(self._where):
                answer = self._s3.delete_objects(
                    **self._bucket, Delete={"Objects": keys, "Quiet": True}
                )
            if failed := answer.get("Errors"):
                text = f"{self._where}: {len(failed)} objects were not deleted: {failed[0]['Code']}"
                raise AppError(ErrorCode.UNAVAILABLE, text)

    def put_snapshot(self, seq: int, data: bytes) -> None:
        with aws_errors(self._where):
            self._put(self._snapshots, seq, data)

    def newest_snapshot(self) -> Snapshot | None:
        while (seq := self.newest_snapshot_seq()) > 0:
            data = self._object(f"{self._snapshots}{seq:0{_DIGITS}}")
            if data is not None:
                return Snapshot(seq, data)
            # removed since it was listed: there is a newer one
        return None

    def newest_snapshot_seq(self) -> int:
        return max(self._listed(self._snapshots), default=0)

    def interrupt(self) -> None:
        """Nothing: every call has a time limit."""

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._s3.close()


class S3Engine:
    """Engine of `s3://`."""

    summary = "s3://BUCKET/NAME[?region=…&owner=ACCOUNT&profile=…&endpoint=URL]"

    def open(self, address: LogAddress, call_s: float) -> S3Log:
        client = client_of("s3", address, call_s, "owner")
        log = S3Log(client, address)
        try:
            if not address.path.strip("/"):
                raise invalid(f"--log {address.text}: expected {self.summary}")
            log.newest_snapshot_seq()  # a wrong bucket or missing rights show at once
        except BaseException:
            log.close()
            raise
        return log


ENGINE = S3Engine()
