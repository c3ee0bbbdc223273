"""One element of `notify:`: who is notified of the end of each job, or run."""

from __future__ import annotations

from dataclasses import dataclass

from contract.secrets.reference import SecretReference

#: Forms of the message about an end: our own document, or CloudEvents 1.0.
PLAIN, CLOUDEVENTS = "plain", "cloudevents"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notified:
    """Exactly one of `queue`, `topic` and `webhook` is not empty."""

    queue: str = ""  #: name of a standard SQS queue of the account and region of the deploy
    topic: str = ""  #: ARN of a standard SNS topic
    webhook: str = ""  #: URL
    secret: SecretReference | None = None  #: of a webhook: the key that signs; None = not signed
    format: str = PLAIN

    @property
    def record(self) -> dict[str, str]:
        """As the record of a function or workflow has it."""
        secret = str(self.secret) if self.secret is not None else ""
        named = {"queue": self.queue, "topic": self.topic, "webhook": self.webhook}
        named |= {"secret": secret, "format": "" if self.format == PLAIN else self.format}
        return {key: value for key, value in named.items() if value}
