"""Statements of IAM policies, and the resources that they name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from contract.secrets.reference import Scheme
from corekit.values import Value
from fdl.model import Function
from fdl.notified import Notified
from fdl.plan.desired import buckets_of, further_roles
from fdl.plan.resources import DeployTarget
from fdl.plan.roles import BOUNDARY_NAME, boundary_of, role_of, secret_arns
from fdl.plan.schedules import schedule_name
from fdl.plan.served import has_url
from fdl.plan.workflows import queues_of
from fdl.role import ROLE_PATH
from fdl.served import http_name

#: The version of IAM's policy language.
LANGUAGE = "2012-10-17"
#: The stack of `orchgpu infra` that is meant unless another one is named.
STACK = "orchgpu"
#: The ends of names of the functions of `deploy --serverless`.
VISITS = ("orchestrate", "complete")
#: The tag of all that a stack starts: its machines, their addresses and groups.
STACK_TAG = "orchgpu:stack"


class Statement(Value):
    """Actions that are allowed, or denied, on resources."""

    sid: str  #: letters and digits only
    actions: tuple[str, ...]
    resources: tuple[str, ...] = ("*",)
    effect: str = "Allow"
    condition: Mapping[str, Any] = {}  #: as IAM writes it

    @property
    def equals(self) -> Mapping[str, str]:
        """Condition key → a value that it may equal."""
        named = self.condition.get("StringEquals", {})
        return {key: value if isinstance(value, str) else value[0] for key, value in named.items()}

    def document(self) -> dict[str, object]:
        condition = {"Condition": dict(self.condition)} if self.condition else {}
        return {
            "Sid": self.sid,
            "Effect": self.effect,
            "Action": list(self.actions),
            "Resource": list(self.resources),
            **condition,
        }


def allow(
    sid: str, *actions: str, on: Iterable[str] = ("*",), when: Mapping[str, Any] | None = None
) -> Statement:
    """Actions on resources, each once; `when`: a condition as IAM writes it.

    A service is written once: `s3:GetObject`, `PutObject`.
    """
    named, service = [], ""
    for action in actions:
        service = action.partition(":")[0] if ":" in action else service
        named.append(action if ":" in action else f"{service}:{action}")
    resources = tuple(dict.fromkeys(on))
    return Statement(sid=sid, actions=tuple(named), resources=resources, condition=when or {})


class Scope(Value):
    """The account, region and functions of a policy.

    No functions: all whose resources have names with these prefixes, also later ones.
    """

    place: DeployTarget
    functions: tuple[Function, ...] = ()
    bucket_prefix: str = ""
    function_prefix: str = ""  #: of functions, and of their queues, roles and log groups
    secret_prefix: str | None = None  #: of entries that functions may read; None = no entry
    stack: str = STACK  #: of `orchgpu infra`: its machines' table, secret, logs and packages
    cluster: str = ""  #: of ECS, with the hosts of a fleet; "" = groups of EC2 Auto Scaling

    @property
    def where(self) -> str:
        """Region and account, as ARNs have them."""
        return f"{self.place.region}:{self.place.account}"

    @property
    def state(self) -> str:
        return self.place.bucket_arn(self.place.state_bucket)

    @property
    def stack_folder(self) -> str:
        """The folder of a stack in the state bucket."""
        return f"infra/{self.stack}"

    @property
    def bundles(self) -> tuple[str, ...]:
        """The packages and settings that a stack's machines read."""
        return below((self.state,), f"{self.stack_folder}/")

    @property
    def of_stack(self) -> dict[str, Any]:
        """The condition that a resource is of the stack."""
        return {"StringEquals": {f"aws:ResourceTag/{STACK_TAG}": self.stack}}

    @property
    def own_logs(self) -> tuple[str, ...]:
        """The logs of a stack's machines."""
        return (f"arn:{self.place.partition}:logs:{self.where}:log-group:/orchgpu/{self.stack}:*",)

    @property
    def all_buckets(self) -> tuple[str, ...]:
        """Buckets that deploy makes or configures."""
        named = (name for function in self.functions for name in buckets_of(function))
        return self._arns((self.place.state_bucket, *named, *self._packages), "bucket")

    @property
    def packages(self) -> tuple[str, ...]:
        return self._arns((self.place.state_bucket, *self._packages), "bucket", always=True)

    @property
    def _packages(self) -> tuple[str, ...]:
        declared = (f.function.deployment.bucket for f in self.functions)
        return tuple(name for name in declared if name)

    @property
    def inputs(self) -> tuple[str, ...]:
        named = (s.path.bucket for f in self.functions for s in f.user_input)
        return self._arns(named, "bucket")

    @property
    def intermediates(self) -> tuple[str, ...]:
        """Buckets of envelopes and results."""
        named = (f.intermediate.bucket for f in self.functions if f.queued)
        return self._arns(named, "bucket")

    @property
    def outputs(self) -> tuple[str, ...]:
        """Buckets of outputs, and of objects that end a job."""
        declared = (s.path.bucket for f in self.functions for s in f.function.output)
        objects = (f.job.object.bucket for f in self.functions if f.job and f.job.object)
        return self._arns((*declared, *objects), "bucket")

    @property
    def watched(self) -> tuple[str, ...]:
        """Buckets with an object that ends a job."""
        named = (f.job.object.bucket for f in self.functions if f.job and f.job.object)
        return self._arns(named, "bucket")

    def queues(self, *which: int) -> tuple[str, ...]:
        """Queues of functions: 0 of jobs, 1 of dead letters, 2 of completions. [default: all]"""
        numbers = which or (0, 1, 2)
        named = (
            f.queues[number]
            for f in self.functions
            for number in numbers
            if f.queues[number] in f.queue_names
        )
        return self._arns(named, "queue")

    @property
    def workflow_queues(self) -> tuple[str, ...]:
        """Queues of workflows: of runs, and of their dead letters.

        Without functions they are among all queues with the prefix.
        """
        workflows = dict.fromkeys(f.workflow for f in self.functions if f.workflow)
        named = (queue for workflow in workflows for queue in queues_of(workflow))
        return tuple(self.place.queue_arn(name) for name in named)

    @property
    def _notified(self) -> tuple[Notified, ...]:
        targets = (one for f in self.functions for one in (*f.notify, *f.run_notify))
        return tuple(dict.fromkeys(targets))

    @property
    def notified_queues(self) -> tuple[str, ...]:
        """Queues that are notified of ends, and those of completions, which hold notices of jobs.

        Without functions those with the prefix, as all queues.
        """
        targets = [self.place.queue_arn(one.queue) for one in self._notified if one.queue]
        notices = (f.queues[2] for f in self.functions if f.notify and f.queued)
        return tuple(dict.fromkeys([*targets, *map(self.place.queue_arn, notices)]))

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics that are notified of ends; without functions those with the prefix."""
        if not self.functions:
            return (f"arn:{self.place.partition}:sns:{self.where}:{self.function_prefix}*",)
        return tuple(dict.fromkeys(one.topic for one in self._notified if one.topic))

    @property
    def signing_secrets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The entries of Secrets Manager and of the Parameter Store whose keys sign webhooks."""
        named: dict[Scheme, list[str]] = {scheme: [] for scheme in Scheme}
        for one in self._notified:
            if one.secret is not None and one.secret.stored:
                named[one.secret.scheme] += secret_arns(one.secret, self.place)
        return tuple(named[Scheme.SECRETS_MANAGER]), tuple(named[Scheme.PARAMETER_STORE])

    def runs(self, *keys: str) -> tuple[str, ...]:
        """The objects of runs of workflows, below `runs/`. [default: all]"""
        named = (f.runs_place.bucket for f in self.functions if f.runs_place is not None)
        buckets = self._arns(named, "bucket")
        return tuple(f"{bucket}/runs/{key}" for bucket in buckets for key in keys or ("*",))

    @property
    def workflow_records(self) -> tuple[str, ...]:
        """The objects that name the deployed workflows."""
        some = not self.functions or any(function.workflow for function in self.functions)
        return below((self.state,), "workflows/") if some else ()

    def keys(self, *, of_buckets: bool) -> tuple[str, ...]:
        """KMS keys that the definition names: of objects, or of functions' variables."""
        if not self.functions:
            return (f"arn:{self.place.partition}:kms:{self.where}:key/*",)
        storages = (s for f in self.functions for s in (*f.user_input, *f.function.output))
        named = (
            [s.kms_key for s in storages]
            if of_buckets
            else [f.function.kms_key for f in self.functions]
        )
        return tuple(dict.fromkeys(key for key in named if key))

    def made_roles(self, *, seen: bool = False) -> tuple[str, ...]:
        """Roles that deploy makes.

        `seen`: also by their names alone, as IAM names a role that does not exist.
        """
        made = [role_of(f, self.place) for f in self.functions if f.iam.create]
        made += [role for f in self.functions for role in further_roles(f, self.place)]
        names = [(one.path[1:], one.name) for one in made]
        if not self.functions:
            names = [(ROLE_PATH[1:], f"{self.function_prefix}*")]
        paths = [path + name for path, name in names] + [name for _, name in names if seen]
        return tuple(self.place.role_arn(path) for path in dict.fromkeys(paths))

    def assumed_roles(self) -> tuple[str, ...]:
        """Roles of functions that may run on a host; without functions those that deploy makes."""
        if not self.functions:
            return self.made_roles()
        on_host = [f for f in self.functions if f.on_host and not f.in_batch]
        made = (role_of(f, self.place).full_name for f in on_host if f.iam.create)
        named = (f.iam.role for f in on_host if f.iam.role is not None)
        return tuple(dict.fromkeys((*map(self.place.role_arn, made), *named)))

    def batch(self) -> tuple[str, ...]:
        """Job queues and definitions of AWS Batch; without functions those with the prefix."""
        where = f"arn:{self.place.partition}:batch:{self.where}"
        places = [f.host.batch for f in self.functions if f.in_batch and f.host.batch is not None]
        named = [(one.queue, one.definition) for one in places]
        if not self.functions:
            named = [(f"{self.function_prefix}*",) * 2]
        queues = [f"{where}:job-queue/{queue}" for queue, _ in named]
        definitions = [
            f"{where}:job-definition/{name}{more}"
            for _, name in named
            for more in ("", *(() if ":" in name or name.endswith("*") else (":*",)))
        ]
        return tuple(dict.fromkeys((*queues, *definitions)))

    @property
    def schedules(self) -> tuple[str, ...]:
        """Schedules of functions; without functions those with the prefix."""
        named = [schedule_name(f, one) for f in self.functions for one in f.schedule]
        names = named if self.functions else [f"{self.function_prefix}*"]
        return tuple(map(self.place.schedule_arn, names))

    @property
    def topics_of_uploads(self) -> tuple[str, ...]:
        """Topics that deploy makes; without functions those with the prefix."""
        return tuple(map(self.place.topic_arn, self._via("sns")))

    @property
    def rules_of_uploads(self) -> tuple[str, ...]:
        """Rules of EventBridge that deploy makes; without functions those with the prefix."""
        return tuple(map(self.place.rule_arn, self._via("eventbridge")))

    def _via(self, service: str) -> list[str]:
        if not self.functions:
            return [f"{self.function_prefix}*"]
        sources = ((f.queues[0], s) for f in self.functions for s in f.user_input)
        return list(dict.fromkeys(queue for queue, s in sources if s.via == service))

    def boundaries(self) -> tuple[str, ...]:
        """The policies by which deploy limits those roles."""
        if not self.functions:
            return (self.place.policy_arn(BOUNDARY_NAME),)
        place = self.place
        limited = (f for f in self.functions if f.iam.create or further_roles(f, place))
        named = (boundary_of(f, place) for f in limited)
        return tuple(dict.fromkeys(named))

    def by(self, service: str) -> dict[str, Any]:
        return {"StringEquals": {"kms:ViaService": f"{service}.{self.place.region}.amazonaws.com"}}

    @property
    def lambdas(self) -> tuple[str, ...]:
        return self._arns((f.name for f in self.functions), "function")

    @property
    def http_functions(self) -> tuple[str, ...]:
        """Functions behind a URL; without functions those with the prefix."""
        return self._arns((http_name(f.name) for f in self.functions if has_url(f)), "function")

    @property
    def visits(self) -> tuple[str, ...]:
        """Functions of `deploy --serverless`."""
        named = (f.name for f in self.functions if f.queued)
        return self._arns((f"{n}-{word}" for n in named for word in VISITS), "function")

    @property
    def without_jobs(self) -> tuple[str, ...]:
        """Functions whose dead letters are sent back to Lambda itself."""
        if not self.functions:
            return self.lambdas
        return tuple(self.place.function_arn(f.name) for f in self.functions if not f.queued)

    @property
    def log_groups(self) -> tuple[str, ...]:
        """Log groups as IAM names them in every action but those on tags."""
        return tuple(f"{arn}:*" for arn in self.tagged_log_groups)

    @property
    def tagged_log_groups(self) -> tuple[str, ...]:
        """Log groups as IAM names them in actions on tags (CloudWatch Logs API, LogGroup)."""
        where = f"arn:{self.place.partition}:logs:{self.where}"
        prefixed = f"/aws/lambda/{self.function_prefix}*"
        names = [f.log_group for f in self.functions] if self.functions else [prefixed]
        names += [f"/aws/lambda/{http_name(f.name)}" for f in self.functions if has_url(f)]
        return tuple(f"{where}:log-group:{name}" for name in dict.fromkeys(names))

    def _arns(self, names: Iterable[str], kind: str, *, always: bool = False) -> tuple[str, ...]:
        make = {
            "bucket": self.place.bucket_arn,
            "queue": self.place.queue_arn,
            "function": self.place.function_arn,
        }[kind]
        prefix = self.bucket_prefix if kind == "bucket" else self.function_prefix
        if self.functions or always:
            chosen = tuple(dict.fromkeys(names))
        else:
            chosen = (*names, f"{prefix}*")
        return tuple(make(name) for name in chosen)


def below(buckets: Iterable[str], *prefixes: str) -> tuple[str, ...]:
    """The objects of buckets below each prefix."""
    return tuple(f"{bucket}/{prefix}*" for bucket in buckets for prefix in prefixes or ("",))


class RoleKind(Value):
    """One role of a system."""

    summary: str  #: the program or person that has the role
    service: str  #: the AWS services that may assume the role, with spaces; "" for people
    needs: Callable[[Scope], Iterable[Statement]]

    def statements(self, scope: Scope) -> tuple[Statement, ...]:
        """The least that it needs."""
        return tuple(one for one in self.needs(scope) if one.resources)


def document(statements: Iterable[Statement]) -> dict[str, object]:
    return {"Version": LANGUAGE, "Statement": [one.document() for one in statements]}


def trust(service: str, place: DeployTarget) -> dict[str, object]:
    """The policy by which a service assumes a role; for people, "", users of the account."""
    account = f"arn:{place.partition}:iam::{place.account}:root"
    several = service.split()
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": several if len(several) > 1 else service}
        if service
        else {"AWS": account},
        "Action": "sts:AssumeRole",
    }
    return {"Version": LANGUAGE, "Statement": [statement]}
