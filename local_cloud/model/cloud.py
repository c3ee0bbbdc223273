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
from corekit.decode import encode
from corekit.ids import IdSource
from local_cloud.model.arns import Account, arn_name, arn_service, new_uuid
from local_cloud.model.batch import Batch
from local_cloud.model.errors import refused
from local_cloud.model.functions.event_sources import EventSources
from local_cloud.model.functions.function import DestinationRecord
from local_cloud.model.functions.functions import Functions, LambdaFunction
from local_cloud.model.policies import Access, allows
from local_cloud.model.recorder import NullRecorder, Recorder, part
from local_cloud.model.regions import check_location, check_region
from local_cloud.model.roles import Roles
from local_cloud.model.s3.body import BodyStore, Content, MemoryBodies
from local_cloud.model.s3.bucket import Bucket, Deleted
from local_cloud.model.s3.multipart import Upload, WantedPart
from local_cloud.model.s3.notifications import (
    Rule,
    bad_destination,
    check_rules,
    matching,
    record_of,
    test_event,
)
from local_cloud.model.s3.object_version import Attributes, Condition, ObjectVersion, no_such_key
from local_cloud.model.schedules import Schedules
from local_cloud.model.secrets import Parameters, Secrets
from local_cloud.model.sqs.queue import Queue
from local_cloud.model.sqs.queues import Queues
from local_cloud.model.weather import NO_WEATHER, Draws, Propagation, StorageWeather, Weather

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
    weather: Weather = NO_WEATHER
    draws: Draws = field(init=False)
    roles: Roles = field(init=False)
    storage: StorageWeather = field(init=False)
    late_rules: Propagation[tuple[Rule, ...]] = field(init=False)
    queues: Queues = field(init=False)
    functions: Functions = field(init=False)
    event_sources: EventSources = field(init=False)
    schedules: Schedules = field(init=False)
    batch: Batch = field(init=False)
    parameters: Parameters = field(init=False)
    secrets: Secrets = field(init=False)
    _buckets: dict[str, Bucket] = field(default_factory=dict)
    _rules: dict[str, tuple[Rule, ...]] = field(default_factory=dict)
    _sequence: int = 0

    def __post_init__(self) -> None:
        draws = self.draws = Draws(self.weather)
        self.storage = StorageWeather(draws)
        self.late_rules = Propagation(draws, "notification rules late")
        self.roles = Roles(self.account, self.recorder, draws)
        self.parameters = Parameters(self.account, self.recorder)
        self.secrets = Secrets(self.account, self.ids, self.recorder)
        self.queues = Queues(
            self.account,
            self.ids,
            self.recorder,
            on_message=lambda queue: self.on_message(queue),
            draws=draws,
            check_policy=self.roles.check_principals,
        )
        self.functions = Functions(
            self.account, self.ids, self.recorder, draws=draws, roles=self.roles
        )
        self.schedules = Schedules(self.account, self.recorder)
        self.batch = Batch(self.account, self.ids)
        self.event_sources = EventSources(
            functions=self.functions, queues=self.queues, ids=self.ids, recorder=self.recorder
        )

    # --- buckets

    def create_bucket(
        self, now_s: float, name: str, location: str = "", *, request_region: str = ""
    ) -> Bucket:
        """Make a bucket; in us-east-1 making one's own again succeeds and changes nothing.

        `location` is the LocationConstraint, `request_region` the region of the request. Raises
        InvalidBucketName, InvalidLocationConstraint, BucketAlreadyOwnedByYou (elsewhere); in
        weather IllegalLocationConstraintException and OperationAborted.
        """
        if rule := broken_rule(name):
            raise refused("InvalidBucketName", f"The specified bucket is not valid: {rule}.")
        if location and (location == FIRST_REGION or not _LOCATION.fullmatch(location)):
            raise refused("InvalidLocationConstraint", "The location constraint is not valid")
        if self.weather.regions:
            check_location(location, request_region)
        existing = self._buckets.get(name)
        if existing is not None:
            if self.account.region == FIRST_REGION and not location and not existing.location:
                return existing
            raise refused("BucketAlreadyOwnedByYou", "The bucket exists and is yours.")
        self.storage.check_name(now_s, name)
        self.storage.check_settings(now_s, name)
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
        if name not in self._buckets:
            raise refused("NoSuchBucket", "The specified bucket does not exist")
        return self._buckets[name]

    def check_region(self, name: str, request_region: str) -> None:
        """Raises, in weather, what S3 answers to a request for a bucket of another region."""
        bucket = self._buckets.get(name)
        if bucket is not None and self.weather.regions:
            check_region(name, self.region_of(bucket), request_region)

    def region_of(self, bucket: Bucket) -> str:
        """The region of a bucket."""
        return "eu-west-1" if bucket.location == "EU" else bucket.location or self.account.region

    def set_versioning(self, now_s: float, name: str, status: str) -> None:
        """Set a bucket's versioning. Raises NoSuchBucket, MalformedXML, OperationAborted."""
        bucket = self.bucket(name)
        self.storage.check_settings(now_s, name)
        if status == "Enabled" and not bucket.versioning:
            self.storage.versioning_enabled(now_s, name)
        bucket.set_versioning(status)

    def delete_bucket(self, now_s: float, name: str) -> None:
        """Raises NoSuchBucket, BucketNotEmpty (versions and markers count), OperationAborted."""
        bucket = self.bucket(name)
        if not bucket.empty:
            raise refused("BucketNotEmpty", "The bucket still has objects, versions or markers.")
        self.storage.check_settings(now_s, name)
        for upload in bucket.uploads.all():
            bucket.uploads.end(upload)
        del self._buckets[name]
        self._rules.pop(name, None)
        self.late_rules.forget(name)
        self.storage.deleted(now_s, name)
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
        """Store a version and send its events. On an error the content stays without an owner,
        unless it is a LostAnswerError.
        """
        self._check_write(condition)
        made = self.bucket(bucket).put(
            now_s,
            self.next_sequencer(now_s),
            key,
            content,
            attributes or Attributes(),
            condition or Condition(),
        )
        self._notify(now_s, bucket, event, made)
        self.draws.check("answer lost")  # last: the version is there, and its events are sent
        return made

    def read_object(
        self, now_s: float, bucket: str, key: str, version_id: str = ""
    ) -> ObjectVersion:
        """Bucket.get; in weather also SlowDown, and NoSuchKey for what is there."""
        self.storage.check_load()
        version = self.bucket(bucket).get(key, version_id)
        if self.storage.hides(now_s, bucket, version.modified_at_s):
            raise no_such_key()
        return version

    def _check_write(self, condition: Condition | None) -> None:
        self.storage.check_load()
        if condition is not None and condition != Condition():
            self.draws.check("write conflict")

    def complete_upload(
        self,
        now_s: float,
        bucket: str,
        upload: Upload,
        parts: Sequence[WantedPart],
        condition: Condition | None = None,
    ) -> ObjectVersion:
        """Make one object of an upload's parts: one event, as on AWS."""
        self._check_write(condition)
        uploads = self.bucket(bucket).uploads
        whole = uploads.assemble(upload, parts)
        made = self.bucket(bucket).put(
            now_s,
            self.next_sequencer(now_s),
            upload.key,
            whole.content,
            whole.attributes,
            condition or Condition(),
            whole.part_sizes,
        )
        uploads.end(upload)
        self._notify(now_s, bucket, "ObjectCreated:CompleteMultipartUpload", made)
        return made

    def delete_object(
        self, now_s: float, bucket: str, key: str, version_id: str = "", if_match: str = ""
    ) -> Deleted:
        """Delete as Bucket.delete does, and send the events; in weather also SlowDown."""
        self.storage.check_load()
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
        # the time alone would stand still within one microsecond, and on virtual time
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
        not let S3 in (unless `check` is False: SkipDestinationValidation); OperationAborted.
        """
        self.bucket(bucket)
        check_rules(rules)
        if check:
            for rule in rules:
                self._check_destination(now_s, bucket, rule.arn)
        self.storage.check_settings(now_s, bucket)
        self.late_rules.changed(now_s, bucket, self._rules.get(bucket, ()))
        self._rules[bucket] = tuple(rules)
        self.recorder.put(f"notification/{part(bucket)}", encode(list(rules)))
        for arn in dict.fromkeys(r.arn for r in rules if arn_service(r.arn) == "sqs"):
            self._send(now_s, arn, json.dumps(test_event(bucket, now_s, self._request_id())))

    def restore_rules(self, bucket: str, rules: Sequence[Rule]) -> None:
        """Set a configuration that is in force, without checks and test events."""
        self.late_rules.forget(bucket)
        self._rules[bucket] = tuple(rules)

    def _check_destination(self, now_s: float, bucket: str, arn: str) -> None:
        service = arn_service(arn)
        if service == "sqs":
            queue = self.queues.by_arn(arn)
            policy = self.queues.settings_in_force(now_s, queue).policy if queue else None
            action = "sqs:SendMessage"
        elif service == "lambda":
            function = self.functions.by_arn(arn)
            policy = self.functions.policy_in_force(now_s, function) if function else None
            action = "lambda:InvokeFunction"
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
        newest = self._rules.get(bucket, ())
        rules = self.late_rules.in_force(now_s, bucket, newest)
        delivering = matching(rules, event, version.key)
        if delivering != matching(newest, event, version.key):
            self.draws.count("notification rules late")
        for rule in delivering:
            request_id = self._request_id()
            record = record_of(rule, event, now_s, bucket, version, self.account, request_id)
            body = json.dumps({"Records": [record]})
            for delay_s in self._event_delays_s():
                if arn_service(rule.arn) == "sqs":
                    self._send(now_s, rule.arn, body, arrives_in_s=delay_s)
                else:
                    self.invoke_later(now_s, rule.arn, body, arrives_in_s=delay_s)

    def _event_delays_s(self) -> list[float]:
        """From a change to each delivery of its event: at least once, in any order (S3 user guide,
        "Amazon S3 Event Notifications")."""
        times = 2 if self.draws.happens("event repeated") else 1
        spans = ["event_late_s" if self.draws.happens("event late") else "" for _ in range(times)]
        return [self.draws.delay_s("event", span) for span in spans]

    # --- deliveries

    def deliver(self, now_s: float, record: DestinationRecord) -> None:
        """Send a destination record to its queue or function; dropped if that does not exist."""
        body = json.dumps(record.body)
        if arn_service(record.arn) == "sqs":
            self._send(now_s, record.arn, body)
        else:
            self.invoke_later(now_s, record.arn, body)

    def invoke_later(
        self, now_s: float, arn: str, payload: str, *, arrives_in_s: float = 0.0
    ) -> str:
        """Asynchronous invocation; the request id, or empty when there is no such function."""
        function = self.functions.by_arn(arn)
        if function is None:
            return ""
        request_id = self.new_request_id()
        function.invocations.accept(now_s, request_id, payload, arrives_in_s=arrives_in_s)
        self.on_invocation(function)
        return request_id

    def _send(self, now_s: float, arn: str, body: str, *, arrives_in_s: float = 0.0) -> None:
        queue = self.queues.by_arn(arn)
        if queue is not None and arn_name(arn) == queue.name:
            queue.send(now_s, body, delay_s=arrives_in_s or None)
            self.on_message(queue)

    def _request_id(self) -> str:
        return f"{self.ids.stream('request').getrandbits(64):016X}"

    def new_request_id(self) -> str:
        return new_uuid(self.ids, "request")
