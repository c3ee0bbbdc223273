"""Statements of IAM policies, and the resources that they name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from corekit.values import Value
from fdl.model import Function
from fdl.plan.desired import buckets_of
from fdl.plan.resources import DeployTarget
from fdl.plan.roles import role_of

#: The version of IAM's policy language.
LANGUAGE = "2012-10-17"


class Statement(Value):
    """Actions that are allowed, or denied, on resources."""

    sid: str  #: letters and digits only
    actions: tuple[str, ...]
    resources: tuple[str, ...] = ("*",)
    effect: str = "Allow"
    condition: Mapping[str, Any] = {}  #: as IAM writes it

    @property
    def equals(self) -> Mapping[str, str]:
        """Condition key → the one value that it must equal."""
        named = self.condition.get("StringEquals", {})
        return {str(key): str(value) for key, value in named.items()}

    def document(self) -> dict[str, object]:
        """The statement as JSON."""
        condition = {"Condition": dict(self.condition)} if self.condition else {}
        return {
            "Sid": self.sid,
            "Effect": self.effect,
            "Action": list(self.actions),
            "Resource": list(self.resources),
            **condition,
        }


class Scope(Value):
    """The account, region and functions of a policy; no functions: all, also later ones."""

    place: DeployTarget
    functions: tuple[Function, ...] = ()

    @property
    def state(self) -> str:
        return self.place.bucket_arn(self.place.state_bucket)

    @property
    def all_buckets(self) -> tuple[str, ...]:
        """Buckets that deploy makes or configures."""
        named = (name for function in self.functions for name in buckets_of(function))
        return self._arns((self.place.state_bucket, *named, *self._packages), "bucket")

    @property
    def packages(self) -> tuple[str, ...]:
        """Buckets of functions' zips."""
        return self._arns((self.place.state_bucket, *self._packages), "bucket", always=True)

    @property
    def _packages(self) -> tuple[str, ...]:
        declared = (f.function.deployment.bucket for f in self.functions)
        return tuple(name for name in declared if name)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Buckets to which users upload."""
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
        named = (f.queues[number] for f in self.functions if f.queued for number in numbers)
        return self._arns(named, "queue")

    def keys(self, *, of_buckets: bool) -> tuple[str, ...]:
        """KMS keys that the definition names: of objects, or of functions' variables."""
        if not self.functions:
            where = f"arn:{self.place.partition}:kms:{self.place.region}:{self.place.account}"
            return (f"{where}:key/*",)
        storages = (s for f in self.functions for s in (*f.user_input, *f.function.output))
        named = (
            [s.kms_key for s in storages]
            if of_buckets
            else [f.function.kms_key for f in self.functions]
        )
        return tuple(dict.fromkeys(key for key in named if key))

    def made_roles(self) -> tuple[str, ...]:
        """Roles that deploy makes."""
        if not self.functions:
            return (self.place.role_arn("orchgpu-*"), self.place.role_arn("*/orchgpu-*"))
        roles = [role_of(f, self.place) for f in self.functions if f.iam.create]
        return tuple(self.place.role_arn(f"{one.path.lstrip('/')}{one.name}") for one in roles)

    def by(self, service: str) -> dict[str, Any]:
        """The condition that a key is used through a service."""
        return {"StringEquals": {"kms:ViaService": f"{service}.{self.place.region}.amazonaws.com"}}

    @property
    def lambdas(self) -> tuple[str, ...]:
        return self._arns((f.name for f in self.functions), "function")

    @property
    def log_groups(self) -> tuple[str, ...]:
        where = f"arn:{self.place.partition}:logs:{self.place.region}:{self.place.account}"
        names = [f.log_group for f in self.functions] or ["/aws/lambda/*"]
        return tuple(f"{where}:log-group:{name}:*" for name in dict.fromkeys(names))

    def _arns(self, names: Iterable[str], kind: str, *, always: bool = False) -> tuple[str, ...]:
        """ARNs of names, each once; without functions those of everything of the kind."""
        make = {
            "bucket": self.place.bucket_arn,
            "queue": self.place.queue_arn,
            "function": self.place.function_arn,
        }[kind]
        chosen = tuple(dict.fromkeys(names)) if self.functions or always else ("*",)
        return tuple(make(name) for name in chosen)


def below(buckets: Iterable[str], *prefixes: str) -> tuple[str, ...]:
    """The objects of buckets below each prefix."""
    return tuple(f"{bucket}/{prefix}*" for bucket in buckets for prefix in prefixes or ("",))


class RoleKind(Protocol):
    """One role of a system."""

    @property
    def summary(self) -> str:
        """The program or person that has the role."""
        ...

    @property
    def service(self) -> str:
        """The AWS service that may assume the role; "" for people."""
        ...

    def statements(self, scope: Scope, /) -> tuple[Statement, ...]:
        """The least that it needs."""
        ...


def document(statements: Iterable[Statement]) -> dict[str, object]:
    """A policy; statements without a resource are left out, because IAM refuses them."""
    kept = [one.document() for one in statements if one.resources]
    return {"Version": LANGUAGE, "Statement": kept}


def trust(service: str, place: DeployTarget) -> dict[str, object]:
    """The policy by which a service assumes a role; for people, "", users of the account."""
    account = f"arn:{place.partition}:iam::{place.account}:root"
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": service} if service else {"AWS": account},
        "Action": "sts:AssumeRole",
    }
    return {"Version": LANGUAGE, "Statement": [statement]}
