"""The permissions boundary of the roles that deploy makes: the most that a function ever needs.

A role may do what both its own policy and its boundary allow (IAM user guide, "Permissions
boundaries for IAM entities"). A deployer may make and change only roles with this boundary, so it
cannot give itself more by a role of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from corekit.errors import invalid
from corekit.values import replace
from fdl.plan.desired import further_roles
from fdl.plan.roles import DENIED_TO_CODE, INTERFACES, LOGS, MOUNT, TRACES, role_of
from orchgpu.permissions.model import RoleKind, Scope, Statement, allow, below, document
from orchgpu.permissions.roles import deployer, function

#: The services through which a function uses KMS keys.
_BY = ("s3", "lambda", "secretsmanager", "ssm")
_WRITES = ("s3:Put*", "Delete*")
#: IAM's quota for a managed policy, without white space.
_CHARACTERS_MAX = 6144


def _needs(scope: Scope) -> tuple[Statement, ...]:
    """The union of the functions' policies, or all that functions with the prefixes may need.

    Never the state bucket, but for reading packages, as on hosts: its records decide what
    orchestrators do.
    """
    records = (scope.state, *below((scope.state,), *deployer.STATE_FOLDERS, "infra/"))
    denied = (
        allow("NotState", "s3:*", on=records),
        allow("NotPackages", *_WRITES, on=(f"{scope.state}/*",)),
    )
    state = [replace(one, effect="Deny") for one in denied]
    own = [role_of(f, scope.place) for f in scope.functions]
    own += [role for f in scope.functions for role in further_roles(f, scope.place)]
    named = function.statements_of(own) if scope.functions else _general(scope)
    statements = (*named, _keys(scope), *state)
    size = len(json.dumps(document(statements), separators=(",", ":")))
    if size > _CHARACTERS_MAX:
        message = f"a managed policy has at most {_CHARACTERS_MAX} characters, this one {size}"
        raise invalid(f"{message}: give prefixes of names instead of FILE")
    return statements


def _keys(scope: Scope) -> Statement:
    """Any key of the account, whose own policy decides too: buckets' keys are in no definition."""
    keys = f"arn:{scope.place.partition}:kms:{scope.where}:key/*"
    services = [f"{one}.{scope.place.region}.amazonaws.com" for one in _BY]
    by = {"StringEquals": {"kms:ViaService": services}}
    return allow("Keys", "kms:Decrypt", "GenerateDataKey", on=(keys,), when=by)


def _general(scope: Scope) -> Iterator[Statement]:
    files = f"arn:{scope.place.partition}:elasticfilesystem:{scope.where}:*"
    objects = ("s3:GetObject", "GetObjectVersion", "PutObject", "AbortMultipartUpload")
    by_code = {"ArnLike": {"lambda:SourceFunctionArn": scope.place.function_arn("*")}}
    yield allow("Objects", *objects, on=below(scope.inputs))
    yield allow("Packages", "s3:GetObject", on=below(scope.packages, "packages/"))
    yield allow("Checkpoints", "s3:DeleteObject", on=below(scope.inputs, "attempts/"))
    yield allow("Absence", "s3:ListBucket", on=scope.inputs)
    yield allow("Failures", "sqs:SendMessage", on=scope.queues())
    yield allow("Logs", *LOGS, on=scope.log_groups)
    yield allow("Network", *INTERFACES)
    yield replace(allow("NetworkNotByCode", *DENIED_TO_CODE, when=by_code), effect="Deny")
    yield allow("Files", *MOUNT, on=(files,))
    yield allow("Traces", *TRACES)
    if scope.secret_prefix is not None:
        where, prefix = f"{scope.place.partition}", scope.secret_prefix
        secret = f"arn:{where}:secretsmanager:{scope.where}:secret:{prefix}*"
        parameter = f"arn:{where}:ssm:{scope.where}:parameter/{prefix.removeprefix('/')}*"
        yield allow("Secrets", "secretsmanager:GetSecretValue", on=(secret,))
        yield allow("Parameters", "ssm:GetParameter", on=(parameter,))


ROLE = RoleKind(
    summary=(
        "no role, but the managed policy `orchgpu-functions`: the limit of roles that deploy makes"
    ),
    service="lambda.amazonaws.com",
    needs=_needs,
)
