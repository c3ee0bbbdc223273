"""The permissions boundary of the roles that deploy makes: the most that a function ever needs.

A role may do what both its own policy and its boundary allow (IAM user guide, "Permissions
boundaries for IAM entities"). A deployer may make and change only roles with this boundary, so it
cannot give itself more by a role of its own.
"""

from __future__ import annotations

import json

from corekit.errors import invalid
from fdl.plan.roles import DENIED_TO_CODE, INTERFACES, LOGS, MOUNT, TRACES
from orchgpu.permissions.model import Scope, Statement, below, document
from orchgpu.permissions.roles import function

#: The services through which a function uses KMS keys.
_BY = ("s3", "lambda", "secretsmanager", "ssm")
#: IAM's quota for a managed policy, without white space.
_CHARACTERS_MAX = 6144


class Boundary:
    """The boundary of the functions of a scope."""

    summary = (
        "no role, but the managed policy `orchgpu-functions`: the limit of roles that deploy makes"
    )
    service = "lambda.amazonaws.com"

    def statements(self, scope: Scope) -> tuple[Statement, ...]:
        """The union of the functions' policies, or all that functions with the prefixes may need.

        Never the state bucket: its records decide what orchestrators do.
        """
        state = Statement(
            sid="NotState",
            actions=("s3:*",),
            resources=(scope.state, f"{scope.state}/*"),
            effect="Deny",
        )
        named = function.ROLE.statements(scope) if scope.functions else _general(scope)
        statements = (*named, _keys(scope), state)
        size = len(json.dumps(document(statements), separators=(",", ":")))
        if size > _CHARACTERS_MAX:
            message = f"a managed policy has at most {_CHARACTERS_MAX} characters, this one {size}"
            raise invalid(f"{message}: give prefixes of names instead of FILE")
        return statements


def _keys(scope: Scope) -> Statement:
    """Any key of the account, whose own policy decides too: buckets' keys are in no definition."""
    place = scope.place
    return Statement(
        sid="Keys",
        actions=("kms:Decrypt", "kms:GenerateDataKey"),
        resources=(f"arn:{place.partition}:kms:{place.region}:{place.account}:key/*",),
        condition={
            "StringEquals": {
                "kms:ViaService": [f"{one}.{place.region}.amazonaws.com" for one in _BY]
            }
        },
    )


def _general(scope: Scope) -> tuple[Statement, ...]:
    buckets = scope.inputs
    where = f"{scope.place.region}:{scope.place.account}"
    files = f"arn:{scope.place.partition}:elasticfilesystem:{where}:*"
    objects = ("s3:GetObject", "s3:GetObjectVersion", "s3:PutObject", "s3:AbortMultipartUpload")
    return (
        Statement(sid="Objects", actions=objects, resources=below(buckets)),
        Statement(sid="Absence", actions=("s3:ListBucket",), resources=buckets),
        Statement(sid="Failures", actions=("sqs:SendMessage",), resources=scope.queues()),
        Statement(sid="Logs", actions=LOGS, resources=scope.log_groups),
        Statement(sid="Network", actions=INTERFACES),
        Statement(
            sid="NetworkNotByCode",
            actions=DENIED_TO_CODE,
            effect="Deny",
            condition={"ArnLike": {"lambda:SourceFunctionArn": scope.place.function_arn("*")}},
        ),
        Statement(sid="Files", actions=MOUNT, resources=(files,)),
        Statement(sid="Traces", actions=TRACES),
        *_secrets(scope, where),
    )


def _secrets(scope: Scope, where: str) -> tuple[Statement, ...]:
    if scope.secret_prefix is None:
        return ()
    stores = f"arn:{scope.place.partition}"
    secret = f"{stores}:secretsmanager:{where}:secret:{scope.secret_prefix}*"
    parameter = f"{stores}:ssm:{where}:parameter/{scope.secret_prefix.removeprefix('/')}*"
    return (
        Statement(sid="Secrets", actions=("secretsmanager:GetSecretValue",), resources=(secret,)),
        Statement(sid="Parameters", actions=("ssm:GetParameter",), resources=(parameter,)),
    )


ROLE = Boundary()
