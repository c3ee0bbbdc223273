"""Mirrors rules, receives events, runs functions."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import logging
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from corekit.aio.supervise import Nursery
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource
from local_cloud.bridge.moto import Delivery, LambdaRule, Moto, RemoteFunction
from local_cloud.clock import CloudClock
from local_cloud.model.arns import arn_name, arn_service
from local_cloud.model.cloud import Cloud
from local_cloud.model.function import DestinationRecord, Invocation, InvocationQueue, Outcome
from local_cloud.model.notifications import quoted_key
from local_cloud.sandbox.dispatcher import Dispatcher, Target
from local_cloud.sandbox.runtime import RunSpec
from local_cloud.sandbox.runtime_api import error_payload
from local_cloud.sandbox.sandbox import Sandbox
from local_cloud.sandbox.unpack import unpack

logger = logging.getLogger(__name__)

QUEUE = "local-cloud-bridge"
DISCOVER_S = 0.5  #: how often rules are looked for; a demo deploys and uploads within seconds
_RECEIVE_S = 1  #: long poll; bounds how long stopping takes, moto answers at once when it can
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
    """One moto server and one sandbox. `revisions` is what the sandbox's sweep asks."""

    def __init__(
        self, moto: Moto, sandbox: Sandbox, folder: Path, nursery: Nursery, clock: CloudClock
    ) -> None:
        self._moto = moto
        self._sandbox = sandbox
        self._code = folder / "code"
        self._clock = clock
        self._nursery = nursery
        self._dispatcher = Dispatcher(nursery, clock.now_s, self._run, self._deliver)
        self._functions: dict[str, BridgedFunction] = {}  # by ARN
        self._rules: dict[str, LambdaRule] = {}  # by the id of their mirror
        self._ids = Cloud(ids=IdSource(secrets.token_hex(16)))
        self._url = self._queue_arn = ""
        self._looked_at = datetime.datetime.now(tz=datetime.UTC)

    async def start(self) -> None:
        """Make the queue, mirror what is there, and begin. Raises UNAVAILABLE."""
        self._url, self._queue_arn = await asyncio.to_thread(self._moto.create_queue, QUEUE)
        await self._discover()
        self._nursery.start_eternal(self._keep_discovering(), "discover")
        self._nursery.start_eternal(self._keep_receiving(), "receive")

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

    async def _discover(self) -> None:
        looked_at = datetime.datetime.now(tz=datetime.UTC)
        seen = await asyncio.to_thread(self._moto.observe, self._queue_arn)
        self._rules = {mirror_id(r): r for found in seen for r in found.rules}
        for found in seen:
            wanted = {mirror_id(rule): rule for rule in found.rules}
            if wanted.keys() == found.mirrors:
                continue
            await asyncio.to_thread(self._moto.mirror, found.bucket, wanted, self._queue_arn)
            for name, rule in wanted.items():
                if name not in found.mirrors:
                    await self._catch_up(rule, self._looked_at - _CATCH_UP)
        self._looked_at = looked_at

    async def _catch_up(self, rule: LambdaRule, since: datetime.datetime) -> None:
        """Events between the rule and its mirror: a function may get one of them twice."""
        for key, size, etag in await asyncio.to_thread(self._moto.created_since, rule, since):
            entity = {"key": quoted_key(key), "size": size, "eTag": etag}
            record = {
                "eventVersion": "2.1",
                "eventSource": "aws:s3",
                "awsRegion": self._moto.region,
                "eventName": "ObjectCreated:Put",
                "s3": {
                    "s3SchemaVersion": "1.0",
                    "configurationId": mirror_id(rule),
                    "bucket": {"name": rule.bucket, "arn": f"arn:aws:s3:::{rule.bucket}"},
                    "object": entity,
                },
            }
            await self._accept(json.dumps({"Records": [record]}))

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

    async def _take(self, found: list[Delivery]) -> None:
        accepted = [delivery for delivery in found if await self._accept(delivery.body)]
        if accepted:
            await asyncio.to_thread(self._moto.delete, self._url, accepted)

    async def _accept(self, body: str) -> bool:
        """Give the event to its function; False: not yet, the rule may become known."""
        try:
            records = json.loads(body).get("Records", ())
            names = [record["s3"]["configurationId"] for record in records]
        except (ValueError, AttributeError, KeyError, TypeError):
            return True  # a test event, or nothing of ours
        for name in names:
            rule = self._rules.get(name)
            if rule is None:
                return False
            function = await self._function(rule.function_arn)
            if function is not None:
                request_id = self._ids.new_request_id()
                function.invocations.accept(self._clock.now_s(), request_id, body)
                self._dispatcher.pump(function)
        return True

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
            queue = InvocationQueue(function_arn=arn)
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
            request_id = self._ids.new_request_id()
            body = json.dumps(record.body)
            function.invocations.accept(self._clock.now_s(), request_id, body)
            self._dispatcher.pump(function)


def mirror_id(rule: LambdaRule) -> str:
    """The id of the mirror of a rule: changes with whatever the rule says."""
    text = repr((rule.bucket, rule.id, rule.function_arn, rule.events, rule.filter))
    return "bridge-" + hashlib.sha256(text.encode()).hexdigest()[:24]


def _same_code(one: RemoteFunction, other: RemoteFunction) -> bool:
    return (one.code_sha256, one.image, one.tags) == (other.code_sha256, other.image, other.tags)


def _revision(remote: RemoteFunction) -> str:
    fields = (remote.handler, remote.timeout_s, remote.memory_mib, dict(remote.variables))
    text = repr((*fields, remote.code_sha256, remote.image, dict(remote.tags)))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
