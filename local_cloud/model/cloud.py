"""The cloud as one value: queues, buckets and functions, and the events that pass between them.

The owner (HTTP server, memory adapter or simulator) calls it with the time. The callbacks
`on_message` and `on_invocation` report arrivals, for which a client may be waiting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from corekit.bucket_names import broken_rule
from corekit.ids import IdSource
from local_cloud.model.arns import Account, arn_name, arn_service
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.functions.function import DestinationRecord
from local_cloud.model.functions.functions import Functions, LambdaFunction
from local_cloud.model.recorder import NullRecorder, Recorder, part
from local_cloud.model.s3.body import BodyStore, Content, MemoryBodies
from local_cloud.model.s3.bucket import Bucket, Deleted
from local_cloud.model.s3.multipart import Upload, WantedPart
from local_cloud.model.s3.notifications import (
    Rule,
    S3Event,
    bad_destination,
    check_rules,
    matching,
    record_of,
    test_event,
)
from local_cloud.model.s3.object_version import Attributes, Condition, ObjectVersion
from local_cloud.model.s3.policy import Access, allows
from local_cloud.model.sqs.queue import Queue
from local_cloud.model.sqs.queues import Queues

FIRST_REGION = "us-east-1"  #: in which S3 still follows its oldest rules
_LOCATION = re.compile(r"EU|[a-z]{2,}(-[a-z0-9]+)+")
_S3 = "s3.amazonaws.com"


@dataclass(slots=True, kw_only=True)
class Cloud:
    """One account in one region."""

    account: Account = field(default_factory=Account)
    ids: IdSource = field(default_factory=lambda: IdSource("cloud"))
    bodies: BodyStore = field(default_factory=MemoryBodies)
    recorder: Recorder = field(default_factory=NullRecorder)
    on_message: Callable[[Queue], None] = lambda _queue: None
    on_invocation: Callable[[LambdaFunction], None] = lambda _function: None
    strict_policies: bool = True  #: False: S3 may reach any destination without its permission
    queues: Queues = field(init=False)
    functions: Functions = field(init=False)
    _buckets: dict[str, Bucket] = field(default_factory=dict)
    _rules: dict[str, tuple[Rule, ...]] = field(default_factory=dict)
    _sequence: int = 0

    def __post_init__(self) -> None:
        self.queues = Queues(self.account, self.ids, self.recorder)
        self.queues.on_message = lambda queue: self.on_message(queue)
        self.functions = Functions(self.account, self.ids, self.recorder)

    # --- buckets

    def create_bucket(self, now_s: float, name: str, location: str = "") -> Bucket:
        """Make a bucket; in us-east-1 making one's own again succeeds and changes nothing.

        `location` is the LocationConstraint. Raises InvalidBucketName, InvalidLocationConstraint,
        BucketAlreadyOwnedByYou (elsewhere).
        """
        if rule := broken_rule(name):
            raise refused("InvalidBucketName", f"The specified bucket is not valid: {rule}.")
        if location and (location == FIRST_REGION or not _LOCATION.fullmatch(location)):
            raise refused(
                "InvalidLocationConstraint", "The specified location-constraint is not valid"
            )
        found = self._buckets.get(name)
        if found is not None:
            if self.account.region == FIRST_REGION and not location and not found.location:
                return found
            raise CloudError(
                "BucketAlreadyOwnedByYou",
                409,
                "Your previous request to create the named bucket succeeded and you already own"
                " it.",
            )
        bucket = self.adopt_bucket(name, now_s)
        bucket.location = location
        bucket.save()
        return bucket

    def adopt_bucket(self, name: str, created_at_s: float) -> Bucket:
        """Make a bucket without recording it (when recorded state is read back)."""
        bucket = Bucket(
            name=name,
            created_at_s=created_at_s,
            ids=self.ids,
            bodies=self.bodies,
            recorder=self.recorder,
        )
        self._buckets[name] = bucket
        return bucket

    def bucket(self, name: str) -> Bucket:
        """Raises NoSuchBucket."""
        found = self._buckets.get(name)
        if found is None:
            raise CloudError("NoSuchBucket", 404, "The specified bucket does not exist")
        return found

    def delete_bucket(self, name: str) -> None:
        """Raises NoSuchBucket and BucketNotEmpty (versions and markers count)."""
        bucket = self.bucket(name)
        if not bucket.empty:
            raise CloudError(
                "BucketNotEmpty",
                409,
                "The bucket you tried to delete is not empty. You must delete all versions in the"
                " bucket.",
            )
        for upload in bucket.uploads.all():
            bucket.uploads.end(upload)
        del self._buckets[name]
        self._rules.pop(name, None)
        self.recorder.drop(f"bucket/{part(name)}")
        self.recorder.drop(f"notification/{part(name)}")

    def buckets(self) -> list[Bucket]:
        """Every bucket, by name."""
        return [self._buckets[name] for name in sorted(self._buckets)]

    # --- objects, with the events they cause

    def put_object(
        self,
        now_s: float,
        bucket: str,
        key: str,
        content: Content,
        attributes: Attributes | None = None,
        condition: Condition | None = None,
        *,
        event: str = "ObjectCreated:Put",
    ) -> ObjectVersion:
        """Store a version and send its events. On an error the content stays without an owner."""
        made = self.bucket(bucket).put(
            now_s,
            self.next_sequencer(now_s),
            key,
            content,
            attributes or Attributes(),
            condition or Condition(),
        )
        self._notify(now_s, bucket, event, made)
        return made

    def complete_upload(
        self,
        now_s: float,
        bucket: str,
        upload: Upload,
        parts: Sequence[WantedPart],
        condition: Condition | None = None,
    ) -> ObjectVersion:
        """Make one object of an upload's parts: one event, as on AWS."""
        uploads = self.bucket(bucket).uploads
        made = self.bucket(bucket).put_assembled(
            now_s,
            self.next_sequencer(now_s),
            uploads.assemble(upload, parts),
            condition or Condition(),
        )
        uploads.end(upload)
        uploads.remember(upload, made.sequencer)
        self._notify(now_s, bucket, "ObjectCreated:CompleteMultipartUpload", made)
        return made

    def delete_object(
        self, now_s: float, bucket: str, key: str, version_id: str = "", if_match: str = ""
    ) -> Deleted:
        """Delete as Bucket.delete does, and send the events."""
        sequencer = self.next_sequencer(now_s)
        done = self.bucket(bucket).delete(now_s, sequencer, key, version_id, if_match)
        if done.changed:
            made_marker = done.marker and not version_id
            event = "ObjectRemoved:DeleteMarkerCreated" if made_marker else "ObjectRemoved:Delete"
            gone = ObjectVersion(
                key=key,
                version_id=done.version_id,
                etag="",
                size=0,
                modified_at_s=now_s,
                sequencer=sequencer,
                marker=made_marker,
            )
            self._notify(now_s, bucket, event, gone)
        return done

    def next_sequencer(self, now_s: float) -> str:
        """Rises with every change of any object; hexadecimal like AWS's."""
        self._sequence = max(self._sequence + 1, int(now_s * 1e6))
        return f"{self._sequence:018X}"

    def seen_sequencer(self, sequencer: str) -> None:
        """Make later sequencers greater than this one (when recorded state is read back)."""
        self._sequence = max(self._sequence, int(sequencer, 16))

    # --- notifications

    def rules(self, bucket: str) -> tuple[Rule, ...]:
        """The bucket's notification rules. Raises NoSuchBucket."""
        self.bucket(bucket)
        return self._rules.get(bucket, ())

    def configure_notifications(
        self, now_s: float, bucket: str, rules: Sequence[Rule], *, check: bool = True
    ) -> None:
        """Replace the whole configuration; every queue in it gets an s3:TestEvent.

        Raises InvalidArgument: overlap, unknown event, a destination that does not exist or does
        not let S3 in (unless `check` is False: SkipDestinationValidation).
        """
        self.bucket(bucket)
        check_rules(rules)
        if check:
            for rule in rules:
                self._check_destination(bucket, rule.arn)
        self._rules[bucket] = tuple(rules)
        self.recorder.put(
            f"notification/{part(bucket)}",
            [[r.id, r.arn, list(r.events), r.prefix, r.suffix] for r in rules],
        )
        for arn in dict.fromkeys(r.arn for r in rules if arn_service(r.arn) == "sqs"):
            self._send(now_s, arn, json.dumps(test_event(bucket, now_s, self._request_id())))

    def restore_rules(self, bucket: str, rules: Sequence[Rule]) -> None:
        """Restore a recorded configuration, without checks and test events."""
        self._rules[bucket] = tuple(rules)

    def _check_destination(self, bucket: str, arn: str) -> None:
        service = arn_service(arn)
        if service == "sqs":
            queue = self.queues.by_arn(arn)
            policy, action = (queue.settings.policy, "sqs:SendMessage") if queue else (None, "")
        elif service == "lambda":
            function = self.functions.by_arn(arn)
            policy, action = (function.policy, "lambda:InvokeFunction") if function else (None, "")
        else:
            raise bad_destination()
        if policy is None:
            raise bad_destination()
        access = Access(
            service=_S3,
            action=action,
            resource=arn,
            source_arn=self.account.bucket_arn(bucket),
            source_account=self.account.id,
        )
        if self.strict_policies and not allows(policy, access):
            raise bad_destination()

    def _notify(self, now_s: float, bucket: str, event: str, version: ObjectVersion) -> None:
        for rule in matching(self._rules.get(bucket, ()), event, version.key):
            s3_event = S3Event(
                event=event,
                at_s=now_s,
                bucket=bucket,
                region=self.account.region,
                account=self.account.id,
                version=version,
                request_id=self._request_id(),
            )
            body = json.dumps({"Records": [record_of(s3_event, rule)]})
            if arn_service(rule.arn) == "sqs":
                self._send(now_s, rule.arn, body)
            else:
                self.invoke_later(now_s, rule.arn, body)

    # --- deliveries

    def deliver(self, now_s: float, record: DestinationRecord) -> None:
        """Send a destination record to its queue or function; dropped if that does not exist."""
        body = json.dumps(record.body)
        if arn_service(record.arn) == "sqs":
            self._send(now_s, record.arn, body)
        else:
            self.invoke_later(now_s, record.arn, body)

    def invoke_later(self, now_s: float, arn: str, payload: str) -> str:
        """Asynchronous invocation; the request id, or empty when there is no such function."""
        function = self.functions.by_arn(arn)
        if function is None:
            return ""
        request_id = self.new_request_id()
        function.invocations.accept(now_s, request_id, payload)
        self.on_invocation(function)
        return request_id

    def _send(self, now_s: float, arn: str, body: str) -> None:
        queue = self.queues.by_arn(arn)
        if queue is not None and arn_name(arn) == queue.name:
            queue.send(now_s, body)
            self.on_message(queue)

    def _request_id(self) -> str:
        return f"{self.ids.stream('request').getrandbits(64):016X}"

    def new_request_id(self) -> str:
        """An id in UUID form, as Lambda and SQS use them."""
        bits = f"{self.ids.stream('request').getrandbits(128):032x}"
        return f"{bits[:8]}-{bits[8:12]}-4{bits[13:16]}-a{bits[17:20]}-{bits[20:]}"
