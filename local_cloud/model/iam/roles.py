"""Roles with their trust, inline policies, tags and boundary, as IAM's API keeps them.

IAM itself shows a change at once; other services know it later (`weather/roles.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from local_cloud.model.arns import Account
from local_cloud.model.errors import CloudError
from local_cloud.model.json_text import read_json
from local_cloud.model.recorder import NullRecorder, Recorded, Recorder, part
from local_cloud.model.s3.notifications import iso_time
from local_cloud.model.weather.roles import RolePropagation
from local_cloud.model.weather.stream import WeatherStream


@dataclass(slots=True, kw_only=True)
class Role:
    """One role."""

    name: str
    trust: str  #: the JSON text of its trust policy
    created_at: str = ""  #: as in AWS's answers
    path: str = "/"
    description: str = ""
    boundary: str = ""  #: ARN of its permissions boundary
    policies: dict[str, str] = field(default_factory=dict)  #: inline, name → JSON text
    tags: dict[str, str] = field(default_factory=dict)


class Roles:
    """Roles by name."""

    def __init__(
        self,
        account: Account | None = None,
        recorder: Recorder | None = None,
        stream: WeatherStream | None = None,
    ) -> None:
        self._account = account or Account()
        self._recorder = recorder or NullRecorder()
        self._roles: dict[str, Role] = {}
        self.fresh = RolePropagation(stream or WeatherStream(), self._documents)

    def create(self, now_s: float, role: Role) -> Role:
        """Raises EntityAlreadyExists and MalformedPolicyDocument."""
        if role.name in self._roles:
            raise CloudError(
                "EntityAlreadyExists", 409, f"Role with name {role.name} already exists."
            )
        _check_document(role.trust)
        role.created_at = iso_time(now_s)
        self._roles[role.name] = role
        self.fresh.created(now_s, self.arn(role))
        self.save(role)
        return role

    def get(self, name: str) -> Role:
        """Raises NoSuchEntity."""
        found = self._roles.get(name)
        if found is None:
            raise CloudError("NoSuchEntity", 404, f"The role with name {name} cannot be found.")
        return found

    def delete(self, name: str) -> None:
        """Raises NoSuchEntity, and DeleteConflict while it has policies."""
        role = self.get(name)
        if role.policies:
            raise CloudError(
                "DeleteConflict", 409, "Cannot delete entity, must delete policies first."
            )
        del self._roles[name]
        self.fresh.deleted(self.arn(role))
        self._recorder.drop(f"role/{part(name)}")

    def put_policy(self, now_s: float, name: str, policy: str, document: str) -> None:
        """Set an inline policy. Raises NoSuchEntity and MalformedPolicyDocument."""
        role = self.get(name)
        _check_document(document)
        self.fresh.policy_changed(now_s, self.arn(role))
        role.policies[policy] = document
        self.save(role)

    def policy(self, name: str, policy: str) -> str:
        """An inline policy. Raises NoSuchEntity."""
        document = self.get(name).policies.get(policy)
        if document is None:
            raise no_policy()
        return document

    def delete_policy(self, now_s: float, name: str, policy: str) -> None:
        """Remove an inline policy. Raises NoSuchEntity."""
        role = self.get(name)
        self.policy(name, policy)
        self.fresh.policy_changed(now_s, self.arn(role))
        del role.policies[policy]
        self.save(role)

    def arn(self, role: Role) -> str:
        """The role's ARN, with its path."""
        return self._account.role_arn(f"{role.path}{role.name}".lstrip("/"))

    def save(self, role: Role) -> None:
        """Record a role after one of its fields was changed."""
        self._recorder.put(
            f"role/{part(role.name)}",
            {
                "created_at": role.created_at,
                "trust": role.trust,
                "path": role.path,
                "description": role.description,
                "boundary": role.boundary,
                "policies": role.policies,
                "tags": role.tags,
            },
        )

    def restore(self, name: str, value: Recorded) -> None:
        """Restore a recorded role, known everywhere."""
        self._roles[name] = Role(
            name=name,
            created_at=value["created_at"],
            trust=value["trust"],
            path=value.get("path", "/"),
            description=value.get("description", ""),
            boundary=value.get("boundary", ""),
            policies=dict(value["policies"]),
            tags=dict(value.get("tags", {})),
        )

    def _documents(self, arn: str) -> tuple[str, ...] | None:
        """The inline policies of the role with that ARN; None without such a role."""
        role = self._roles.get(arn.rsplit("/", 1)[-1])
        return tuple(role.policies.values()) if role is not None and self.arn(role) == arn else None


def no_policy() -> CloudError:
    """IAM's answer for an inline policy that the role does not have."""
    return CloudError("NoSuchEntity", 404, "The role policy cannot be found.")


def _check_document(text: str) -> None:
    try:
        document = read_json(text)
    except ValueError:
        document = None
    if not isinstance(document, Mapping):
        raise CloudError("MalformedPolicyDocument", 400, "The policy is not JSON.")
