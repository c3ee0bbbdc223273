"""The cloud resources a function can need, as plain values that can be compared and shown.

A resource has a key, `<kind>/<name>`, unique in one account and region. Two equal values need no
step; a differing field is what a plan shows. Nothing here is secret.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeAlias, get_args

from corekit.decode import encode
from corekit.values import Value, replace

#: A JSON object that is not looked into; `Any` is how `corekit.decode` knows it.
Json: TypeAlias = Mapping[str, Any]
#: Key that stands for the url of a queue in a record's body until that queue exists.
QUEUE_URL = "$queue_url"


class DeployTarget(Value):
    """The account and region of a deployment."""

    account: str
    region: str
    partition: str = "aws"
    local: bool = False  #: True: not AWS itself (embedded cloud, moto, LocalStack, an own store)
    by_services: bool = False  #: True: HTTP services run functions (`service:`), not Lambda
    #: Kinds of resources, and `versioning` of buckets, that it does not have → the consequence.
    lacks: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()  #: other differences to AWS, each a sentence for plans

    @property
    def state_bucket(self) -> str:
        """On AWS in the account's own namespace: no other account can take its name (S3 user guide,
        "Namespaces for general purpose buckets")."""
        suffix = f"-{self.account}-{self.region}" if self.local else self.own_suffix
        return f"orchgpu-state{suffix}"

    @property
    def own_suffix(self) -> str:
        """The end of the names of buckets in the account's own namespace."""
        return f"-{self.account}-{self.region}-an"

    def queue_arn(self, name: str) -> str:
        return f"arn:{self.partition}:sqs:{self.region}:{self.account}:{name}"

    def function_arn(self, name: str) -> str:
        return f"arn:{self.partition}:lambda:{self.region}:{self.account}:function:{name}"

    def topic_arn(self, name: str) -> str:
        return f"arn:{self.partition}:sns:{self.region}:{self.account}:{name}"

    def rule_arn(self, name: str) -> str:
        return f"arn:{self.partition}:events:{self.region}:{self.account}:rule/{name}"

    def bucket_arn(self, name: str) -> str:
        return f"arn:{self.partition}:s3:::{name}"

    def role_arn(self, name: str) -> str:
        return f"arn:{self.partition}:iam::{self.account}:role/{name}"

    @property
    def root_arn(self) -> str:
        """The account as a principal."""
        return f"arn:{self.partition}:iam::{self.account}:root"

    def policy_arn(self, name: str) -> str:
        return f"arn:{self.partition}:iam::{self.account}:policy/{name}"

    def schedule_arn(self, name: str) -> str:
        where = f"{self.region}:{self.account}"
        return f"arn:{self.partition}:scheduler:{where}:schedule/default/{name}"


class Bucket(Value):
    """A bucket; one that exists already is used as it is."""

    kind: ClassVar[str] = "bucket"
    name: str
    versioned: bool = True  #: job ids are made of object versions
    owner: str = ""  #: account of a foreign bucket; "" = the account of the deploy
    region: str = ""  #: where it must be, or (observed) is; "" = anywhere, unknown
    tags: Mapping[str, str] = {}  #: of a bucket that deploy makes


class Package(Value):
    """A function's zip in the state bucket, or in the one that the file names for it."""

    kind: ClassVar[str] = "package"
    bucket: str
    sha256: str  #: of the zip, hex

    @property
    def name(self) -> str:
        return f"{self.bucket}/{self.sha256}"

    @property
    def object_key(self) -> str:
        return f"packages/{self.sha256}.zip"


class QueueResource(Value):
    """A standard queue."""

    kind: ClassVar[str] = "queue"
    name: str
    retention_s: int
    visibility_s: int
    dead_letter_arn: str = ""
    receives_max: int = 0  #: of the redrive policy; 0 = none
    policy: Json = {}  #: {} = none
    tags: Mapping[str, str] = {}


class Topic(Value):
    """An SNS topic with one subscriber, a queue; others may subscribe too."""

    kind: ClassVar[str] = "topic"
    name: str
    queue: str
    policy: Json


class EventRule(Value):
    """A rule of EventBridge's default bus, with one target, a queue."""

    kind: ClassVar[str] = "event-rule"
    name: str
    queue: str
    pattern: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionResource:
    """A Lambda function, zip or image."""

    kind: ClassVar[str] = "function"
    name: str
    role: str
    memory_mib: int
    timeout_s: int
    runtime: str = ""  #: "" for images
    handler: str = ""  #: of an image: its command; "" = the image's own
    package: str = ""  #: hex sha256 of the zip; "" = an image without one
    image: str = ""  #: image uri; "" = a zip function
    #: (bucket, key) of the zip when it is not sent directly; cannot be observed
    code_at: tuple[str, ...] = field(default=(), compare=False)
    architectures: tuple[str, ...] = ("x86_64",)
    description: str = ""
    layers: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    subnet_ids: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    file_systems: tuple[tuple[str, str], ...] = ()  #: (arn, mount path)
    tags: Mapping[str, str] = field(default_factory=dict)
    storage_mib: int = 512  #: of /tmp
    reserved: int | None = None  #: concurrency; None = the account's common limit
    kms_key: str = ""  #: "" = AWS's own
    log_format: str = "Text"
    log_level: str = ""  #: of a JSON log
    log_system_level: str = ""  #: of a JSON log
    log_group: str = ""  #: "" = /aws/lambda/<name>
    tracing: str = "PassThrough"


class Role(Value):
    """The role of a function or of its schedules, for one service, with one inline policy."""

    kind: ClassVar[str] = "role"
    name: str
    policy: Json
    path: str = "/"
    boundary: str = ""  #: ARN of the policy that limits it; "" (observed) = none
    #: Whose principals may assume it, beside Lambda, where their own policies allow it: an ARN of
    #: the account; "" = by Lambda alone.
    assumed_by: str = ""
    tags: Mapping[str, str] = {}
    service: str = ""  #: that may assume it; "" = Lambda

    @property
    def full_name(self) -> str:
        """Path and name, as an ARN has them."""
        return self.path[1:] + self.name


class EventSource(Value):
    """A queue whose messages Lambda hands to a function, which answers what it has not finished."""

    kind: ClassVar[str] = "event-source"
    function: str
    queue: str
    batch: int  #: messages of one call
    concurrency_max: int

    @property
    def name(self) -> str:
        return f"{self.function}/{self.queue}"


class Schedule(Value):
    """Regular calls of a function, or times at which an object is put into a bucket.

    Whether it is paused is not here: a deploy leaves it as it is.
    """

    kind: ClassVar[str] = "schedule"
    name: str
    role: str  #: by which the calls are made
    every_min: int = 0  #: 0: at the times of `cron`
    function: str = ""  #: "": an object is put
    cron: str = ""  #: `cron(…)`
    timezone: str = "UTC"
    put: Json = {}  #: parameters of S3's PutObject


class InvokeConfig(Value):
    """Lambda's treatment of an asynchronous event that fails."""

    kind: ClassVar[str] = "invoke-config"
    name: str  #: the function's
    retries: int
    event_age_s: int
    on_failure_arn: str


class Permission(Value):
    """One statement of a function's policy: this bucket may invoke it."""

    kind: ClassVar[str] = "permission"
    function: str
    statement: str
    source_arn: str
    account: str

    @property
    def name(self) -> str:
        return f"{self.function}/{self.statement}"


#: The id, which S3 does not have, of the setting that a bucket's events go to EventBridge.
EVENT_BRIDGE = "EventBridge"


class FunctionUrl(Value):
    """The URL of a Lambda function, whose callers sign their requests."""

    kind: ClassVar[str] = "function-url"
    function: str
    origins: tuple[str, ...] = ()  #: of pages that may call it
    auth: str = "AWS_IAM"
    answers: str = "BUFFERED"  #: Lambda's invoke mode; our code streams none

    @property
    def name(self) -> str:
        return self.function


class Notification(Value):
    """One rule of a bucket's notification configuration.

    That with the id EVENT_BRIDGE has no target: the bucket's events go to EventBridge too.
    """

    kind: ClassVar[str] = "notification"
    bucket: str
    id: str
    target_arn: str
    prefix: str = ""
    suffix: str = ""
    events: tuple[str, ...] = ("s3:ObjectCreated:*",)

    @property
    def name(self) -> str:
        return f"{self.bucket}/{self.id}"

    def overlaps(self, other: Notification) -> bool:
        """True when one object could match both: S3 refuses such a configuration."""
        families = [{event.split(":")[1] for event in rule.events} for rule in (self, other)]
        return (
            self.bucket == other.bucket
            and not families[0].isdisjoint(families[1])
            and _one_starts(self.prefix, other.prefix)
            and _one_starts(self.suffix[::-1], other.suffix[::-1])
        )


def _one_starts(left: str, right: str) -> bool:
    return left.startswith(right) or right.startswith(left)


class Expiry(Value):
    """One rule of a bucket's lifecycle: what lies under a prefix is deleted after some days."""

    kind: ClassVar[str] = "expiry"
    bucket: str
    id: str
    prefix: str
    days: int = 0  #: of objects; 0 = they stay
    uploads_days: int = 0  #: of uploads in parts that were never completed; 0 = they stay

    @property
    def name(self) -> str:
        return f"{self.bucket}/{self.id}"


class LogRetention(Value):
    """Retention of a function's logs; not owned by deploy, so `rm` leaves it as it is."""

    kind: ClassVar[str] = "log-retention"
    name: str  #: the function's
    days: int
    group_name: str = ""  #: "" = Lambda's own
    tags: Mapping[str, str] = {}

    @property
    def group(self) -> str:
        return self.group_name or f"/aws/lambda/{self.name}"


class Record(Value):
    """The registry record that makes orchestrators serve the function."""

    kind: ClassVar[str] = "record"
    folder: ClassVar[str] = "functions"
    name: str  #: the function's
    bucket: str
    body: Json  #: of `orchgpu.core.function.Function`; urls may be {QUEUE_URL: name}

    @property
    def object_key(self) -> str:
        return f"{self.folder}/{self.name}.json"

    def resolved(self, urls: Mapping[str, str]) -> Self:
        """The same with the urls of the queues that exist filled in."""
        body = {key: _url(value, urls) for key, value in self.body.items()}
        return replace(self, body=body)


class WorkflowRecord(Record):
    """The registry record that makes orchestrators follow runs of the workflow.

    Its body is of `orchgpu.core.runs.workflow.Workflow`.
    """

    kind: ClassVar[str] = "workflow"
    folder: ClassVar[str] = "workflows"

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of its steps."""
        return tuple(step["name"] for step in self.body.get("steps", ()))


def _url(value: object, urls: Mapping[str, str]) -> object:
    if isinstance(value, Mapping) and set(value) == {QUEUE_URL}:
        return urls.get(value[QUEUE_URL], value)
    return value


class Ledger(Value):
    """Deploy's list of the resources that it created for a function; it deletes no others."""

    kind: ClassVar[str] = "ledger"
    name: str  #: the function's
    bucket: str
    created: tuple[str, ...] = ()  #: keys of resources, sorted
    owners: Mapping[str, str] = {}  #: accounts of the buckets that are not of this account

    @property
    def object_key(self) -> str:
        return f"deployments/{self.name}.json"

    @property
    def visits(self) -> bool:
        """True for the functions of an orchestrator without a server."""
        return any(key.startswith(f"{EventSource.kind}/") for key in self.created)


Resource: TypeAlias = (
    Bucket
    | Package
    | QueueResource
    | Topic
    | EventRule
    | FunctionResource
    | InvokeConfig
    | EventSource
    | Schedule
    | Permission
    | FunctionUrl
    | Notification
    | Expiry
    | LogRetention
    | Role
    | Record
    | WorkflowRecord
    | Ledger
)

KINDS: Mapping[str, type] = {kind.kind: kind for kind in get_args(Resource)}

#: Kinds in the order of creation; they are deleted in the opposite order. The ledger comes before
#: the resources it will own, records after those they name.
ORDER = (
    "ledger",
    "bucket",
    "package",
    "expiry",
    "role",
    "queue",
    "topic",
    "event-rule",
    "log-retention",
    "function",
    "invoke-config",
    "permission",
    "function-url",
    "notification",
    "record",
    "workflow",
    "event-source",
    "schedule",
)


def key_of(resource: Resource) -> str:
    """`<kind>/<name>`."""
    return f"{resource.kind}/{resource.name}"


def fields_of(resource: Resource) -> dict[str, object]:
    """The resource as plain data."""
    plain = encode(resource)
    assert isinstance(plain, dict)
    return plain


def digest(value: object) -> str:
    """A short stable hash of plain data: the revision of a record."""
    text = json.dumps(encode(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
