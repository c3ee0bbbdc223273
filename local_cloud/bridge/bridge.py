"""Mirrors rules, receives events, runs functions."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import secrets
import urllib.parse
from functools import partial
from pathlib import Path
from typing import Any

from corekit.aio.supervise import Nursery
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource
from corekit.values import replace
from local_cloud.bridge.moto import Moto, RemoteFunction
from local_cloud.model.arns import Account, arn_name, arn_service
from local_cloud.model.cloud import Cloud
from local_cloud.model.functions.function import DestinationRecord
from local_cloud.model.functions.functions import LambdaFunction
from local_cloud.model.json_text import read_json
from local_cloud.model.s3.notifications import Rule, iso_time, quoted_key
from local_cloud.process import CloudClock
from local_cloud.sandbox.code import Code, CodeStore
from local_cloud.sandbox.runner import Runner
from local_cloud.sandbox.sandbox import Sandbox

logger = logging.getLogger(__name__)

QUEUE = "local-cloud-bridge"
DISCOVER_S = 0.5  #: between two looks for new rules; a demo deploys and uploads within seconds
_RECEIVE_S = 1  #: of a long poll; bounds the time to stop
_BACK_OFF_S = 1.0  #: after moto did not answer
#: S3 dates have whole seconds
_CATCH_UP = datetime.timedelta(seconds=1.5)


class Bridge:
    """One moto server, whose functions the embedded cloud's model and sandbox run."""

    def __init__(
        self,
        moto: Moto,
        sandbox: Sandbox,
        folder: Path,
        nursery: Nursery,
        clock: CloudClock,
        queue: tuple[str, str],
    ) -> None:
        """`queue`: URL and ARN of the bridge's own."""
        self._moto = moto
        self._clock = clock
        self._url, self._queue_arn = queue
        self._cloud = Cloud(
            account=Account(id=self._queue_arn.split(":")[4], region=moto.region),
            ids=IdSource(secrets.token_hex(16)),
        )
        code = CodeStore(folder / "code")
        self._runner = Runner(self._cloud, clock, sandbox, code, nursery, self._deliver)
        self._packages: dict[str, tuple[object, Code]] = {}  # by ARN: what names it, and itself
        self._rules: dict[str, tuple[Rule, ...]] = {}  # by bucket
        self._looked_at = datetime.datetime.now(tz=datetime.UTC)

    @classmethod
    async def start(
        cls, moto: Moto, sandbox: Sandbox, folder: Path, nursery: Nursery, clock: CloudClock
    ) -> Bridge:
        """Make the queue, mirror what is there, and begin. Raises UNAVAILABLE."""
        queue = await asyncio.to_thread(moto.create_queue, QUEUE)
        bridge = cls(moto, sandbox, folder, nursery, clock, queue)
        await bridge._discover()
        nursery.start_loop(bridge._keep_discovering, "discover")
        nursery.start_loop(bridge._keep_receiving, "receive")
        return bridge

    def close(self) -> None:
        """Start nothing more."""
        self._runner.close()

    def revisions(self) -> dict[str, str]:
        """Current revision of every function known."""
        return {f.name: f.revision for f in self._cloud.functions.all()}

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
        before, self._rules = self._rules, {each.bucket: each.rules for each in seen}
        for each in seen:
            wanted = bool(each.rules)
            if each.mirrors != wanted:
                mirror = partial(self._moto.mirror, each.bucket, self._queue_arn, wanted=wanted)
                await asyncio.to_thread(mirror)
            for rule in each.rules:
                if rule not in before.get(each.bucket, ()):
                    await self._catch_up(each.bucket, rule, self._looked_at - _CATCH_UP)
        self._looked_at = looked_at

    async def _catch_up(self, bucket: str, rule: Rule, since: datetime.datetime) -> None:
        """Deliver events between the rule and its mirror; a function may get one of them twice."""
        created = await asyncio.to_thread(self._moto.created_since, bucket, rule.prefix, since)
        for key, size, etag in created:
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
                messages = await asyncio.to_thread(self._moto.receive, self._url, _RECEIVE_S)
                if messages:
                    await self._take(messages)
            except AppError as error:
                logger.warning(error.message, extra={"event": "moto_unavailable"})
                await asyncio.sleep(_BACK_OFF_S)
            except Exception:
                logger.exception("events were not taken", extra={"event": "moto_fault"})
                await asyncio.sleep(_BACK_OFF_S)

    async def _take(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            for record in records_of(message["Body"]):
                await self._route(record)
        await asyncio.to_thread(self._moto.delete, self._url, messages)

    async def _route(self, record: dict[str, Any]) -> None:
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
        await self._accept(rule.arn, json.dumps({"Records": [record]}))

    async def _accept(self, arn: str, payload: str) -> None:
        function = await self._function(arn)
        if function is not None:
            self._cloud.invoke_later(self._clock.now_s(), function.arn, payload)

    # --- functions

    async def _function(self, arn: str) -> LambdaFunction | None:
        """The function as it is now, or None when it cannot run (which is logged)."""
        try:
            remote = await asyncio.to_thread(self._moto.function, arn)
            code = await self._code_of(arn, remote)
        except AppError as error:
            logger.error(
                "%s cannot run: %s", arn, error.message, extra={"event": "function_unusable"}
            )
            if error.code is ErrorCode.UNAVAILABLE:
                raise
            return None
        functions, now_s = self._cloud.functions, self._clock.now_s()
        wanted = replace(remote.settings, code_sha256=code.sha256, code_bytes=code.size)
        function = functions.by_arn(arn) or functions.create(now_s, wanted)
        if function.settings != wanted:
            functions.update(now_s, function.name, wanted.given, code_sha256=code.sha256)
        function.invocations.config = remote.config
        if function.reserved != remote.reserved:
            function.reserved = remote.reserved
            self._runner.settings_changed(function)
        return function

    async def _code_of(self, arn: str, remote: RemoteFunction) -> Code:
        named = (remote.code_sha256, remote.settings.image_uri, remote.tags)
        package = self._packages.get(arn)
        if package is not None and package[0] == named:
            return package[1]
        data = await asyncio.to_thread(self._moto.code, remote)
        code = await asyncio.to_thread(self._runner.code.add, data)
        self._packages[arn] = named, code
        return code

    async def _deliver(self, record: DestinationRecord) -> None:
        body = json.dumps(record.body)
        if arn_service(record.arn) == "sqs":
            await asyncio.to_thread(self._moto.send, arn_name(record.arn), body)
        else:
            await self._accept(record.arn, body)


def records_of(body: str) -> list[dict[str, Any]]:
    """The S3 records of a message; empty for a test event or a foreign message."""
    try:
        records = read_json(body)["Records"]
        return [r for r in records if r["s3"]["bucket"]["name"] and r["s3"]["object"]["key"]]
    except (ValueError, KeyError, TypeError):
        return []
