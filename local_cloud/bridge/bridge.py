"""Mirrors rules, receives events, runs functions."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import logging
import secrets
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from corekit.aio.supervise import Nursery
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource
from local_cloud.bridge.moto import Delivery, Mirror, Moto, RemoteFunction
from local_cloud.model.arns import arn_name, arn_service
from local_cloud.model.cloud import Cloud
from local_cloud.model.functions.function import (
    DestinationRecord,
    Invocation,
    InvocationQueue,
    Outcome,
)
from local_cloud.model.json_text import read_json
from local_cloud.model.s3.notifications import Rule, iso_time, quoted_key
from local_cloud.process import CloudClock
from local_cloud.sandbox.dispatcher import Dispatcher, Target
from local_cloud.sandbox.runtime import RunSpec, log_group
from local_cloud.sandbox.runtime_api import error_payload
from local_cloud.sandbox.sandbox import Sandbox
from local_cloud.sandbox.unpack import unpack

logger = logging.getLogger(__name__)

QUEUE = "local-cloud-bridge"
DISCOVER_S = 0.5  #: between two looks for new rules; a demo deploys and uploads within seconds
_RECEIVE_S = 1  #: of a long poll; bounds the time to stop
_BACK_OFF_S = 1.0  #: after moto did not answer
#: S3 dates have whole seconds
_CATCH_UP = datetime.timedelta(seconds=1.5)


@dataclass(slots=True, kw_only=True)
class BridgedFunction:
    """A function that some rule names."""

    remote: RemoteFunction
    revision: str
    code: Path
    invocations: InvocationQueue

    @property
    def name(self) -> str:
        return self.remote.name


class Bridge:
    """One moto server and one sandbox, whose sweep calls `revisions`."""

    def __init__(
        self, moto: Moto, sandbox: Sandbox, folder: Path, nursery: Nursery, clock: CloudClock
    ) -> None:
        self._moto = moto
        self._sandbox = sandbox
        self._code = folder / "code"
        self._clock = clock
        self._nursery = nursery
        self._dispatcher = Dispatcher(nursery, clock.now_s, self._run, self._deliver)
        sandbox.on_free = self._dispatcher.slot_free
        self._functions: dict[str, BridgedFunction] = {}  # by ARN
        self._rules: dict[str, tuple[Rule, ...]] = {}  # by bucket
        self._ids = Cloud(ids=IdSource(secrets.token_hex(16)))
        self._url = self._queue_arn = ""
        self._looked_at = datetime.datetime.now(tz=datetime.UTC)

    async def start(self) -> None:
        """Make the queue, mirror what is there, and begin. Raises UNAVAILABLE."""
        self._url, self._queue_arn = await asyncio.to_thread(self._moto.create_queue, QUEUE)
        await self._discover()
        self._nursery.start_loop(self._keep_discovering, "discover")
        self._nursery.start_loop(self._keep_receiving, "receive")

    def close(self) -> None:
        """Start nothing more."""
        self._dispatcher.close()

    def revisions(self) -> dict[str, str]:
        """Current revision of every function known."""
        return {f.name: f.revision for f in self._functions.values()}

    # --- rules

    async def _keep_discovering(self) -> None:
        while True:
            await asyncio.sleep(DISCOVER_S)
            try:
                await self._discover()
            except AppError as error:
                logger.warning(error.message, extra={"event": "moto_unavailable"})
                await asyncio.sleep(_BACK_OFF_S)
            except Exception:  # an unexpected answer does not end the loop: the next may be good
                logger.exception("rules were not read", extra={"event": "moto_fault"})
                await asyncio.sleep(_BACK_OFF_S)

    async def _discover(self) -> None:
        looked_at = datetime.datetime.now(tz=datetime.UTC)
        seen = await asyncio.to_thread(self._moto.observe, self._queue_arn)
        known, self._rules = self._rules, {found.bucket: found.rules for found in seen}
        for found in seen:
            mirror = mirror_of(found.rules)
            if found.mirrors != ({mirror.id} if mirror is not None else set()):
                await asyncio.to_thread(self._moto.mirror, found.bucket, mirror, self._queue_arn)
            for rule in found.rules:
                if rule not in known.get(found.bucket, ()):
                    await self._catch_up(found.bucket, rule, self._looked_at - _CATCH_UP)
        self._looked_at = looked_at

    async def _catch_up(self, bucket: str, rule: Rule, since: datetime.datetime) -> None:
        """Deliver events between the rule and its mirror; a function may get one of them twice."""
        found = await asyncio.to_thread(self._moto.created_since, bucket, rule.prefix, since)
        for key, size, etag in found:
            record = {
                "eventVersion": "2.1",
                "eventSource": "aws:s3",
                "awsRegion": self._moto.region,
                "eventTime": iso_time(self._clock.now_s()),
                "eventName": "ObjectCreated:Put",
                "s3": {
                    "s3SchemaVersion": "1.0",
                    "configurationId": rule.id,
                    "bucket": {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"},
                    "object": {"key": quoted_key(key), "size": size, "eTag": etag},
                },
            }
            if rule.matches("ObjectCreated:Put", key):
                await self._invoke(rule, record)

    # --- events

    async def _keep_receiving(self) -> None:
        while True:
            try:
                found = await asyncio.to_thread(self._moto.receive, self._url, _RECEIVE_S)
                if found:
                    await self._take(found)
            except AppError as error:
                logger.warning(error.message, extra={"event": "moto_unavailable"})
                await asyncio.sleep(_BACK_OFF_S)
            except Exception:
                logger.exception("events were not taken", extra={"event": "moto_fault"})
                await asyncio.sleep(_BACK_OFF_S)

    async def _take(self, found: list[Delivery]) -> None:
        for delivery in found:
            for record in records_of(delivery.body):
                await self._route(record)
        await asyncio.to_thread(self._moto.delete, self._url, found)

    async def _route(self, record: dict[str, Any]) -> None:
        """Deliver one event to the functions whose rule matches it."""
        about = record["s3"]
        key = urllib.parse.unquote_plus(about["object"]["key"])
        event = record["eventName"]
        # moto sends Put and CompleteMultipartUpload; AWS only the latter
        if event == "ObjectCreated:Put" and "-" in about["object"].get("eTag", ""):
            return
        for rule in self._rules.get(about["bucket"]["name"], ()):
            if rule.matches(event, key):
                named = {**about, "configurationId": rule.id}
                await self._invoke(rule, {**record, "s3": named})

    async def _invoke(self, rule: Rule, record: dict[str, Any]) -> None:
        function = await self._function(rule.arn)
        if function is not None:
            self._accept(function, json.dumps({"Records": [record]}))

    def _accept(self, function: BridgedFunction, payload: str) -> None:
        request_id = self._ids.new_request_id()
        function.invocations.accept(self._clock.now_s(), request_id, payload)
        self._dispatcher.pump(function)

    # --- functions

    async def _function(self, arn: str) -> BridgedFunction | None:
        """The function as it is now, or None when it cannot run (which is logged)."""
        try:
            remote = await asyncio.to_thread(self._moto.function, arn)
            known = self._functions.get(arn)
            code = known.code if known is not None else None
            if known is None or code is None or not _same_code(known.remote, remote):
                data = await asyncio.to_thread(self._moto.code, remote)
                code = await asyncio.to_thread(unpack, data, self._code)
        except AppError as error:
            logger.error(
                "%s cannot run: %s", arn, error.message, extra={"event": "function_unusable"}
            )
            if error.code is ErrorCode.UNAVAILABLE:
                raise
            return None
        revision = _revision(remote)
        if known is None:
            queue = InvocationQueue(
                function_arn=arn,
                backs_off=False,
                note=lambda invocation, condition: self._sandbox.note(
                    remote.name, log_group(remote.name), invocation, condition
                ),
            )
            known = BridgedFunction(remote=remote, revision=revision, code=code, invocations=queue)
            self._functions[arn] = known
        known.remote, known.revision, known.code = remote, revision, code
        known.invocations.config = remote.config
        if remote.reserved is None:
            self._sandbox.pool.reserved.pop(known.name, None)
        else:
            self._sandbox.pool.reserved[known.name] = remote.reserved
        return known

    async def _run(self, target: Target, invocation: Invocation) -> Outcome:
        function = cast("BridgedFunction", target)
        remote = function.remote
        spec = RunSpec(
            name=remote.name,
            arn=remote.arn,
            revision=function.revision,
            handler=remote.handler,
            code=function.code,
            timeout_s=remote.timeout_s,
            memory_mib=remote.memory_mib,
            variables=remote.variables,
        )
        if not function.code.is_dir():
            payload = error_payload("Sandbox.NoCode", f"{function.code} was removed")
            return Outcome(payload=payload, error="Unhandled")
        outcome, _ = await self._sandbox.invoke(spec, invocation.request_id, invocation.payload)
        if outcome.error:
            logger.info("%s: %s", remote.name, outcome.payload, extra={"event": "function_error"})
        return outcome

    async def _deliver(self, record: DestinationRecord) -> None:
        if arn_service(record.arn) == "sqs":
            body = json.dumps(record.body)
            await asyncio.to_thread(self._moto.send, arn_name(record.arn), body)
            return
        function = await self._function(record.arn)
        if function is not None:
            self._accept(function, json.dumps(record.body))


def mirror_of(rules: Sequence[Rule]) -> Mirror | None:
    """One rule for all events that any of the rules names; None without rules."""
    if not rules:
        return None
    events = sorted({event for rule in rules for event in rule.events})
    only = rules[0] if len(rules) == 1 else None
    return Mirror(
        events=tuple(events),
        prefix=only.prefix if only is not None else "",
        suffix=only.suffix if only is not None else "",
    )


def records_of(body: str) -> list[dict[str, Any]]:
    """The S3 records of a message; empty for a test event or a foreign message."""
    try:
        records = read_json(body)["Records"]
        return [r for r in records if r["s3"]["bucket"]["name"] and r["s3"]["object"]["key"]]
    except (ValueError, KeyError, TypeError):
        return []


def _same_code(one: RemoteFunction, other: RemoteFunction) -> bool:
    return (one.code_sha256, one.image, one.tags) == (other.code_sha256, other.image, other.tags)


def _revision(remote: RemoteFunction) -> str:
    fields = (remote.handler, remote.timeout_s, remote.memory_mib, dict(remote.variables))
    text = repr((*fields, remote.code_sha256, remote.image, dict(remote.tags)))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
