"""The key `notify:`: queues, topics and webhooks that are notified of each end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from urllib.parse import urlsplit

from contract.secrets.reference import SecretReference, parse_reference
from corekit.addresses import refused_address
from corekit.errors import AppError, invalid
from fdl.notified import CLOUDEVENTS, PLAIN, Notified
from fdl.schema.scalars import Choice, Text
from fdl.schema.schema import Block, Key, ListOf, Reading, Schema
from fdl.text.nodes import Node, Scalar

#: Each is a call at every end.
NOTIFIED_MAX = 8
_REFERENCE = "^(secretsmanager|ssm|file):."


@dataclass(frozen=True, slots=True)
class _Secret:
    """A reference to a secret. A value in clear may stand here by mistake: errors hide it."""

    def read(self, node: Node, path: str, reading: Reading) -> SecretReference:
        if not isinstance(node, Scalar) or node.is_null:
            raise self._error(reading, node, path, "expected a reference to a secret")
        try:
            return parse_reference(node.text)
        except ValueError as error:
            raise self._error(reading, node, path, str(error)) from None

    def _error(self, reading: Reading, node: Node, path: str, message: str) -> AppError:
        return reading.source.error(node.at, f"{reading.written(path)}: {message}", private=True)

    def describe(self) -> str:
        return "`secretsmanager:NAME[#KEY]`, `ssm:NAME` or `file:PATH`"

    def schema(self) -> Schema:
        return {"type": "string", "pattern": _REFERENCE}


def _notified(
    *,
    queue: str = "",
    topic: str = "",
    webhook: str = "",
    secret: SecretReference | None = None,
    format: str = PLAIN,  # noqa: A002 - the key
) -> Notified:
    """Raises INVALID unless it is one place, which may be asked."""
    if len([one for one in (queue, topic, webhook) if one]) != 1:
        raise invalid("write exactly one of `queue`, `topic` and `webhook` in each element")
    if secret is not None and not webhook:
        raise invalid("`secret` signs webhooks; access to queues and topics is by IAM")
    if secret is not None and not secret.stored and not PurePath(secret.name).is_absolute():
        raise invalid(
            f"{secret}: orchestrators read the file on their machine: write its whole path"
        )
    if webhook:
        _check(webhook)
    return Notified(queue=queue, topic=topic, webhook=webhook, secret=secret, format=format)


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        raise invalid("the URL of the webhook is not valid") from None
    if not host:
        raise invalid("the URL of the webhook names no host")
    if "@" in parts.netloc:
        raise invalid("a webhook's URL has no user and password: name a `secret` to sign instead")
    if refused_address(host):
        raise invalid(f"{host} is a link-local or metadata address: no webhook is sent there")


NOTIFY = ListOf(
    item=Block(
        into=_notified,
        defaults=Notified,
        keys={
            "queue": Key(
                reader=Text(
                    pattern=r"[A-Za-z0-9_-]{1,80}",
                    what="the name of a standard SQS queue (letters, digits, - and _, up to 80)",
                    short="a queue's name",
                ),
                about="An SQS queue of the account and region of the function; it is not made.",
            ),
            "topic": Key(
                reader=Text(
                    pattern=r"arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}",
                    what="the ARN of a standard SNS topic",
                    short="a topic's ARN",
                ),
                about="An SNS topic; it is not made.",
            ),
            "webhook": Key(
                reader=Text(
                    pattern=r"https?://[!-~]{1,2000}",
                    what="a URL that begins with https:// or http://",
                    short="a URL",
                ),
                about="A URL that gets a POST; redirects are not followed, and link-local and"
                " metadata addresses are refused.",
            ),
            "secret": Key(
                reader=_Secret(),
                about="The key that signs the webhook's requests (standardwebhooks.com), which"
                " the orchestrator reads.",
                default="not signed",
            ),
            "format": Key(
                reader=Choice((PLAIN, CLOUDEVENTS)),
                about="The form of the message: orchgpu's own, or JSON of CloudEvents 1.0 with the"
                " type `orchgpu.job.succeeded`, `orchgpu.run.failed` and so on.",
            ),
        },
    ),
    one=True,
    items_max=NOTIFIED_MAX,
)
