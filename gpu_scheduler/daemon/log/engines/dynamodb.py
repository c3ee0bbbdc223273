"""A log in a table of DynamoDB: one item per item, written under `attribute_not_exists`.

    dynamodb://TABLE/NAME[?region=…&profile=…&endpoint=URL]

The table has the partition key `log` and the sort key `item`, both strings; it is created, with
capacity on demand, when it does not exist. All reads are consistent. Sort keys:

    i#<seq>                  an item
    s#<seq>                  a snapshot: number and token of its chunks; written after them
    c#<seq>#<token>#<n>      a chunk
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any

from botocore.exceptions import ClientError, WaiterError

from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.log.engines._aws import aws_errors, client_of, code_of
from gpu_scheduler.daemon.log.port import LogAddress, LogLimits, Snapshot
from gpu_scheduler.daemon.log.writer import read_again

#: DynamoDB's limit is 400 KB with the names and keys.
LIMITS = LogLimits(item_bytes_max=390_000, snapshot_after=20_000)
#: DynamoDB's own limit of one batch.
BATCH = 25
#: A snapshot may be trimmed while it is read; a newer one is there then.
READ_TRIES = 5
#: Batches that DynamoDB does only in part are continued this often.
BATCH_TRIES = 10


class DynamoDbLog:
    """`gpu_scheduler.daemon.log.port.Log` in one partition of a table."""

    limits = LIMITS

    def __init__(self, client: Any, address: LogAddress) -> None:
        self._client = client
        self._where = address.text
        self._table = address.host
        self._log = {"S": address.path}

    def put_if_absent(self, seq: int, data: bytes) -> bool:
        if len(data) > LIMITS.item_bytes_max:
            raise invalid(f"an item has at most {LIMITS.item_bytes_max} bytes, got {len(data)}")
        with aws_errors(self._where):
            try:
                self._client.put_item(
                    TableName=self._table,
                    Item=self._row(_item(seq), data={"B": data}),
                    ConditionExpression="attribute_not_exists(#i)",
                    ExpressionAttributeNames={"#i": "item"},
                )
            except ClientError as error:
                if code_of(error) == "ConditionalCheckFailedException":
                    return False
                raise
        return True

    def read(self, from_seq: int) -> Iterator[tuple[int, bytes]]:
        for row in self._rows(_item(from_seq), _item(_LAST)):
            if row["item"]["S"] != _item(from_seq):
                return
            yield from_seq, bytes(row["data"]["B"])
            from_seq += 1

    def last_seq(self, after: int) -> int:
        rows = self._rows(_item(after + 1), _item(_LAST), keys_only=True, newest_first=True)
        newest = next(rows, None)
        return after if newest is None else _seq_of(newest)

    def trim(self, to_seq: int, keep: Collection[int] = ()) -> None:
        kept = {_item(seq) for seq in keep}
        items = self._rows(_item(1), _item(to_seq), keys_only=True) if to_seq > 0 else ()
        self._delete(name for row in items if (name := row["item"]["S"]) not in kept)
        if to_seq > 1:  # the snapshot goes before its chunks: it is never there without them
            before = to_seq - 1
            for first, last in (("s#", _snapshot(before)), ("c#", f"c#{before:0{_DIGITS}}#~")):
                rows = self._rows(first, last, keys_only=True)
                self._delete(row["item"]["S"] for row in rows)

    def put_snapshot(self, seq: int, data: bytes) -> None:
        token = secrets.token_hex(8)  # chunks of a try that failed are not mixed with these
        size = LIMITS.item_bytes_max
        chunks = [data[start : start + size] for start in range(0, len(data), size)]
        rows = (
            self._row(f"{_chunks(seq, token)}{number:06}", data={"B": chunk})
            for number, chunk in enumerate(chunks)
        )
        self._batches({"PutRequest": {"Item": row}} for row in rows)
        with aws_errors(self._where):
            self._client.put_item(
                TableName=self._table,
                Item=self._row(_snapshot(seq), token={"S": token}, bytes={"N": str(len(data))}),
            )

    def newest_snapshot(self) -> Snapshot | None:
        for _ in range(READ_TRIES):
            newest = self._newest()
            if newest is None:
                return None
            seq, token = _seq_of(newest), newest["token"]["S"]
            first = _chunks(seq, token)
            data = b"".join(bytes(row["data"]["B"]) for row in self._rows(first, first + "~"))
            if len(data) == int(newest["bytes"]["N"]):
                return Snapshot(seq, data)
        text = f"{self._where}: chunks of the snapshot {seq} are missing"
        raise AppError(ErrorCode.INTERNAL, text)

    def newest_snapshot_seq(self) -> int:
        newest = self._newest()
        return 0 if newest is None else _seq_of(newest)

    def interrupt(self) -> None:
        """Nothing: every call has a time limit."""

    def close(self) -> None:
        self._client.close()

    # --- rows

    def _row(self, item: str, **values: dict[str, object]) -> dict[str, dict[str, object]]:
        return {"log": dict(self._log), "item": {"S": item}, **values}

    def _newest(self) -> dict[str, Any] | None:
        rows = self._rows("s#", "s#~", newest_first=True)
        return next(rows, None)

    def _rows(
        self, first: str, last: str, *, keys_only: bool = False, newest_first: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Rows between two sort keys, both included."""
        names = {"#l": "log", "#i": "item"}
        query = {
            "TableName": self._table,
            "KeyConditionExpression": "#l = :l AND #i BETWEEN :a AND :b",
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": {":l": self._log, ":a": {"S": first}, ":b": {"S": last}},
            "ConsistentRead": True,
            "ScanIndexForward": not newest_first,
        }
        if keys_only:
            query["ProjectionExpression"] = "#i"
        if newest_first:
            query["Limit"] = 1
        while True:
            page = read_again(self._query, query)
            yield from page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            query["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    def _query(self, query: dict[str, Any]) -> Any:
        with aws_errors(self._where):
            return self._client.query(**query)

    def _delete(self, items: Iterable[str]) -> None:
        self._batches({"DeleteRequest": {"Key": self._row(item)}} for item in items)

    def _batches(self, requests: Iterable[dict[str, Any]]) -> None:
        remaining = iter(requests)
        while batch := list(islice(remaining, BATCH)):
            self._batch(batch)

    def _batch(self, batch: list[dict[str, Any]]) -> None:
        for _ in range(BATCH_TRIES):
            with aws_errors(self._where):
                answer = self._client.batch_write_item(RequestItems={self._table: batch})
            batch = answer.get("UnprocessedItems", {}).get(self._table, [])
            if not batch:
                return
        text = f"{self._where}: DynamoDB throttles: {len(batch)} items of a batch are left"
        raise AppError(ErrorCode.EXHAUSTED, text)


_DIGITS = 20
_LAST = 10**_DIGITS - 1


def _item(seq: int) -> str:
    return f"i#{seq:0{_DIGITS}}"


def _snapshot(seq: int) -> str:
    return f"s#{seq:0{_DIGITS}}"


def _chunks(seq: int, token: str) -> str:
    return f"c#{seq:0{_DIGITS}}#{token}#"


def _seq_of(row: dict[str, Any]) -> int:
    return int(row["item"]["S"].partition("#")[2])


class DynamoDbEngine:
    """Engine of `dynamodb://`."""

    summary = "dynamodb://TABLE/NAME[?region=…&profile=…&endpoint=URL]"

    def open(self, address: LogAddress, call_s: float) -> DynamoDbLog:
        client = client_of("dynamodb", address, call_s)
        try:
            if not address.path:
                raise invalid(f"--log {address.text}: expected {self.summary}")
            self._prepare(client, address)
        except BaseException:
            client.close()
            raise
        return DynamoDbLog(client, address)

    def _prepare(self, client: Any, address: LogAddress) -> None:
        """Create the table if it is missing, and compare its keys."""
        with aws_errors(address.text):
            try:
                found = client.describe_table(TableName=address.host)["Table"]
            except ClientError as error:
                if code_of(error) != "ResourceNotFoundException":
                    raise
                _create(client, address.host)
                found = client.describe_table(TableName=address.host)["Table"]
        keys = {key["AttributeName"]: key["KeyType"] for key in found["KeySchema"]}
        if keys != {"log": "HASH", "item": "RANGE"}:
            text = f"--log {address.text}: the table {address.host} has other keys; it needs the "
            raise invalid(text + "partition key `log` and the sort key `item`, both strings")


def _create(client: Any, table: str) -> None:
    names = ("log", "item")
    try:
        client.create_table(
            TableName=table,
            AttributeDefinitions=[{"AttributeName": n, "AttributeType": "S"} for n in names],
            KeySchema=[
                {"AttributeName": "log", "KeyType": "HASH"},
                {"AttributeName": "item", "KeyType": "RANGE"},
            ],
            BillingMode="PAY_PER_REQUEST",
        )
    except ClientError as error:
        if code_of(error) != "ResourceInUseException":  # another one creates it just now
            raise
    try:
        client.get_waiter("table_exists").wait(
            TableName=table, WaiterConfig={"Delay": 1, "MaxAttempts": 60}
        )
    except WaiterError as error:
        text = f"the table {table} was not created within a minute: {error}"
        raise AppError(ErrorCode.UNAVAILABLE, text) from None


ENGINE = DynamoDbEngine()
