"""Fresh roles: unknown to Lambda, KMS and SQS for a while, and their policies too.

Sources: IAM user guide, "Troubleshoot IAM: changes that I make are not always immediately visible";
the answers and their repetition in terraform-provider-aws: `lambda/function.go` ("cannot be assumed
by Lambda", "does not have permissions to call CreateNetworkInterface", "KMS key is invalid for
CreateGrant": Lambda grants the role the use of the key of its variables, AWS's own or a named one),
`lambda/function_event_invoke_config.go` ("does not have permissions to call …"),
`sqs/queue_attribute.go` ("Invalid value for the parameter Policy"). It waits up to two minutes.

Without weather no role is checked. A role that IAM here never made is accepted: local deployments
name one.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping

from local_cloud.model.errors import CloudError, refused
from local_cloud.model.json_text import read_json
from local_cloud.model.weather.propagation import Propagation
from local_cloud.model.weather.stream import WeatherStream

#: Services that learn of a role each in its own time.
_LAMBDA, _KMS, _SQS = _SERVICES = "lambda", "kms", "sqs"
_NETWORK = "ec2:CreateNetworkInterface"
#: Action of a destination's service → the name in Lambda's answer.
_SENDING = {"sqs": "sqs:SendMessage", "lambda": "lambda:InvokeFunction"}

#: The inline policies of a role by its ARN, None without such a role.
Documents = Callable[[str], tuple[str, ...] | None]


class RolePropagation:
    """The checks of the services that name a role."""

    def __init__(self, stream: WeatherStream, documents: Documents) -> None:
        self._stream = stream
        self._documents = documents
        self._roles = Propagation(stream, "role unknown")
        self._policies = Propagation(stream, "role's policy unknown")
        self._before: dict[str, tuple[str, ...]] = {}  #: policies in force until the change is

    def created(self, now_s: float, arn: str) -> None:
        """IAM made a role."""
        for service in _SERVICES:
            self._roles.changed(now_s, f"{service} {arn}", self._stream.weather.role_s)

    def policy_changed(self, now_s: float, arn: str) -> None:
        """A policy of the role is about to change."""
        self._before[arn] = self._in_force(now_s, arn)
        self._policies.changed(now_s, arn, self._stream.weather.role_policy_s)

    def deleted(self, arn: str) -> None:
        """IAM deleted the role."""
        for service in _SERVICES:
            self._roles.forget(f"{service} {arn}")
        self._policies.forget(arn)
        self._before.pop(arn, None)

    def check_function(
        self, now_s: float, arn: str, *, in_vpc: bool, has_variables: bool = False
    ) -> None:
        """Raises InvalidParameterValueException: Lambda cannot use the role (yet)."""
        if not self._roles.known(now_s, f"{_LAMBDA} {arn}"):
            raise _not_usable("The role defined for the function cannot be assumed by Lambda.")
        if in_vpc and not self._may(now_s, arn, _NETWORK, "*"):
            raise _not_usable(
                "The provided execution role does not have permissions to call"
                " CreateNetworkInterface on EC2"
            )
        if has_variables and not self._roles.known(now_s, f"{_KMS} {arn}"):
            raise _not_usable(
                "Lambda was unable to configure your environment variables because the KMS key is"
                " invalid for CreateGrant. Please check your KMS key settings. KMS Exception:"
                " InvalidArnException KMS Message: ARN does not refer to a valid principal"
            )

    def check_destination(self, now_s: float, arn: str, destination: str) -> None:
        """Raises InvalidParameterValueException: the role may not send there (yet)."""
        action = _SENDING.get(destination.split(":")[2] if destination.count(":") > 4 else "", "")
        if action and not self._may(now_s, arn, action, destination):
            raise _not_usable(
                "The function's execution role does not have permissions to call"
                f" {action.partition(':')[2]} on {destination}"
            )

    def check_principals(self, now_s: float, policy: str) -> None:
        """Raises InvalidAttributeValue: a queue's policy names a role that SQS does not know."""
        for arn in _roles_in(policy):
            if not self._roles.known(now_s, f"{_SQS} {arn}"):
                raise refused("InvalidAttributeValue", "Invalid value for the parameter Policy.")

    def _may(self, now_s: float, arn: str, action: str, resource: str) -> bool:
        """Whether the role's policies in force allow it; True without weather, or of no role."""
        if self._stream.weather.role_policy_s[1] <= 0 or self._documents(arn) is None:
            return True
        if any(_allows(text, action, resource) for text in self._in_force(now_s, arn)):
            return True
        self._stream.count("role's policy unknown")
        return False

    def _in_force(self, now_s: float, arn: str) -> tuple[str, ...]:
        if self._policies.settled(now_s, arn):
            return self._documents(arn) or ()
        return self._before.get(arn, ())


def _not_usable(message: str) -> CloudError:
    return refused("InvalidParameterValueException", message)


def _roles_in(policy: str) -> Iterator[str]:
    """The ARNs of roles that a policy names as principals."""
    for statement in _statements(policy):
        principal = statement.get("Principal")
        named = principal.get("AWS", ()) if isinstance(principal, Mapping) else ()
        for arn in _many(named):
            if ":role/" in str(arn):
                yield str(arn)


def _allows(policy: str, action: str, resource: str) -> bool:
    return any(
        statement.get("Effect") == "Allow"
        and any(
            fnmatch.fnmatchcase(action.lower(), str(a).lower()) for a in _of(statement, "Action")
        )
        and any(fnmatch.fnmatchcase(resource, str(r)) for r in _of(statement, "Resource"))
        for statement in _statements(policy)
    )


def _statements(policy: str) -> Iterator[Mapping[str, object]]:
    try:
        document = read_json(policy)
    except ValueError:
        return
    if isinstance(document, Mapping):
        for statement in _many(document.get("Statement", ())):
            if isinstance(statement, Mapping):
                yield statement


def _of(statement: Mapping[str, object], name: str) -> Iterable[object]:
    return _many(statement.get(name, ()))


def _many(value: object) -> Iterable[object]:
    return value if isinstance(value, (list, tuple)) else (value,)
