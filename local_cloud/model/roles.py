"""Roles with their trust, inline policies, tags and boundary, as IAM's API keeps them.

IAM itself shows a change at once. In weather Lambda, KMS and SQS learn of a new role each in its
own time, and later of a change of its policies; the answers are those that
terraform-provider-aws repeats: `lambda/function.go` ("cannot be assumed by Lambda", "does not have
permissions to call CreateNetworkInterface", "KMS key is invalid for CreateGrant": Lambda grants the
role the use of the key of its variables), `lambda/function_event_invoke_config.go`,
`sqs/queue_attribute.go`. A role that IAM here never made is accepted: local deployments name one.
"""

from __future__ import annotations

from collections.abc import Mapping

from corekit.decode import decode, encode
from corekit.values import Value, field, replace
from local_cloud.model.arns import Account, arn_service
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.json_text import read_json
from local_cloud.model.policies import Access, allows, many, statements
from local_cloud.model.recorder import Recorded, Recorder, part
from local_cloud.model.s3.notifications import iso_time
from local_cloud.model.weather import Draws, Propagation

#: Services that learn of a role each in its own time.
_LAMBDA, _KMS, _SQS = _SERVICES = "lambda", "kms", "sqs"
#: The service of a destination → the action that sends to it.
_SENDING = {"sqs": "sqs:SendMessage", "lambda": "lambda:InvokeFunction"}


class Role(Value):
    """One role."""

    name: str
    trust: str  #: the JSON text of its trust policy
    created_at: str = ""  #: as in AWS's answers
    path: str = "/"
    description: str = ""
    boundary: str = ""  #: ARN of its permissions boundary
    policies: Mapping[str, str] = field(default_factory=dict)  #: inline, name → JSON text
    tags: Mapping[str, str] = field(default_factory=dict)


class Roles:
    """Roles by name, and what other services know of them."""

    def __init__(self, account: Account, recorder: Recorder, draws: Draws) -> None:
        self._account, self._recorder, self._draws = account, recorder, draws
        self._roles: dict[str, Role] = {}
        self._fresh = Propagation[None](self._draws, "role unknown")
        self._policies = Propagation[tuple[str, ...]](self._draws, "role's policy unknown")

    def create(self, now_s: float, role: Role) -> Role:
        """Raises EntityAlreadyExists and MalformedPolicyDocument."""
        if role.name in self._roles:
            raise refused("EntityAlreadyExists", f"Role with name {role.name} already exists.")
        _check_document(role.trust)
        role = self.save(replace(role, created_at=iso_time(now_s)))
        for service in _SERVICES:  # a draw for each: one may know the role while another does not
            self._fresh.changed(now_s, f"{service} {self.arn(role)}", None)
        return role

    def get(self, name: str) -> Role:
        """Raises NoSuchEntity."""
        role = self._roles.get(name)
        if role is None:
            raise refused("NoSuchEntity", f"The role with name {name} cannot be found.")
        return role

    def delete(self, name: str) -> None:
        """Raises NoSuchEntity, and DeleteConflict while it has policies."""
        role = self.get(name)
        if role.policies:
            raise refused("DeleteConflict", "Cannot delete entity, must delete policies first.")
        del self._roles[name]
        for service in _SERVICES:
            self._fresh.forget(f"{service} {self.arn(role)}")
        self._policies.forget(self.arn(role))
        self._recorder.drop(f"role/{part(name)}")

    def put_policy(self, now_s: float, name: str, policy: str, document: str) -> None:
        """Set an inline policy. Raises NoSuchEntity and MalformedPolicyDocument."""
        role = self.get(name)
        _check_document(document)
        self._set_policies(now_s, role, {**role.policies, policy: document})

    def policy(self, name: str, policy: str) -> str:
        """An inline policy. Raises NoSuchEntity."""
        document = self.get(name).policies.get(policy)
        if document is None:
            raise refused("NoSuchEntity", "The role policy cannot be found.")
        return document

    def delete_policy(self, now_s: float, name: str, policy: str) -> None:
        """Remove an inline policy. Raises NoSuchEntity."""
        self.policy(name, policy)
        role = self.get(name)
        left = {key: text for key, text in role.policies.items() if key != policy}
        self._set_policies(now_s, role, left)

    def _set_policies(self, now_s: float, role: Role, policies: Mapping[str, str]) -> None:
        self._policies.changed(now_s, self.arn(role), tuple(role.policies.values()))
        self.save(replace(role, policies=policies))

    def arn(self, role: Role) -> str:
        """The role's ARN, with its path."""
        return self._account.role_arn(f"{role.path}{role.name}".lstrip("/"))

    def save(self, role: Role) -> Role:
        """Take and record a role with changed fields."""
        self._roles[role.name] = role
        self._recorder.put(f"role/{part(role.name)}", encode(role))
        return role

    def change_trust(self, role: Role, trust: str) -> None:
        """Replace the trust policy. Raises MalformedPolicyDocument."""
        _check_document(trust)
        self.save(replace(role, trust=trust))

    def check_assumed(self, arn: str) -> None:
        """Raises AccessDenied: the role does not trust the account, as which all callers count."""
        role = self._roles.get(arn.rsplit("/", 1)[-1])
        if role is None:
            return
        account = self._account.id
        trusted = ("*", account, f"arn:aws:iam::{account}:root")
        for statement in statements(role.trust):
            principal = statement.get("Principal")
            named = principal.get("AWS", []) if isinstance(principal, dict) else principal
            allows_it = statement.get("Effect") == "Allow"
            if allows_it and any(one in trusted for one in many(named)):
                return
        raise CloudError(
            "AccessDenied",
            403,
            f"User: arn:aws:iam::{account}:root is not authorized to perform: sts:AssumeRole on"
            f" resource: {arn}",
        )

    def restore(self, value: Recorded) -> None:
        """Restore a recorded role, known everywhere."""
        role = decode(Role, value, "role")
        self._roles[role.name] = role

    # --- in weather: what other services know

    def check_function(
        self, now_s: float, arn: str, *, in_vpc: bool, has_variables: bool = False
    ) -> None:
        """Raises InvalidParameterValueException: Lambda cannot use the role (yet)."""
        if not self._fresh.known(now_s, f"{_LAMBDA} {arn}"):
            raise _not_usable("The role defined for the function cannot be assumed by Lambda.")
        if in_vpc and not self._may(now_s, arn, "ec2:CreateNetworkInterface", "*"):
            raise _not_usable(
                "The provided execution role does not have permissions to call"
                " CreateNetworkInterface on EC2"
            )
        if has_variables and not self._fresh.known(now_s, f"{_KMS} {arn}"):
            raise _not_usable(
                "Lambda was unable to configure your environment variables because the KMS key is"
                " invalid for CreateGrant. Please check your KMS key settings. KMS Exception:"
                " InvalidArnException KMS Message: ARN does not refer to a valid principal"
            )

    def check_destination(self, now_s: float, arn: str, destination: str) -> None:
        """Raises InvalidParameterValueException: the role may not send there (yet)."""
        action = _SENDING.get(arn_service(destination), "")
        if action and not self._may(now_s, arn, action, destination):
            raise _not_usable(
                "The function's execution role does not have permissions to call"
                f" {action.partition(':')[2]} on {destination}"
            )

    def check_principals(self, now_s: float, policy: str) -> None:
        """Raises InvalidAttributeValue: a queue's policy names a role that SQS does not know."""
        for statement in statements(policy):
            principal = statement.get("Principal")
            named = principal.get("AWS", []) if isinstance(principal, dict) else []
            for arn in map(str, many(named)):
                if ":role/" in arn and not self._fresh.known(now_s, f"{_SQS} {arn}"):
                    text = "Invalid value for the parameter Policy."
                    raise refused("InvalidAttributeValue", text)

    def _may(self, now_s: float, arn: str, action: str, resource: str) -> bool:
        """Whether the role's policies in force allow it; True without weather, or of no role."""
        role = self._roles.get(arn.rsplit("/", 1)[-1])
        if self._draws.weather.role_policy_s[1] <= 0 or role is None or self.arn(role) != arn:
            return True
        documents = self._policies.in_force(now_s, arn, tuple(role.policies.values()))
        if any(allows(text, Access(action=action, resource=resource)) for text in documents):
            return True
        self._draws.count("role's policy unknown")
        return False


def _not_usable(message: str) -> CloudError:
    return refused("InvalidParameterValueException", message)


def _check_document(text: str) -> None:
    try:
        document = read_json(text)
    except ValueError:
        document = None
    if not isinstance(document, Mapping):
        raise refused("MalformedPolicyDocument", "The policy is not JSON.")
