"""The values of a function's secrets, kept in memory between the runs of one environment.

A value is read again after AGE_S, so that a rotation is picked up. While its store cannot be
reached, the last value is used up to STALE_S.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from contract.aws.faults import Fault
from contract.secrets.reference import SecretReference, UnknownScheme, parse_reference
from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed
from lambda_functions.gpu_runner.secrets.masking import Masker, masks
from lambda_functions.gpu_runner.secrets.stores import Unreadable

LOG = logging.getLogger(__name__)

AGE_S = 300.0
STALE_S = 3600.0
#: All reads of one run begin within this time, and within half of the script's.
WITHIN_S = 15.0
#: A policy that a deploy has just changed is in force seconds later, and Parameter Store serves 40
#: calls a second by default: functions that start together read again at different times.
_PAUSES_S = (1.0, 2.0, 4.0)

#: Step → variable → reference; the only step of a function has the name "".
References = Mapping[str, Mapping[str, str]]
#: Reads the newest value. Raises Unreadable.
Read = Callable[[SecretReference], str]


def parsed(references: References) -> Iterator[SecretReference]:
    """The references that this version knows; the others fail the run that needs them."""
    for secrets in references.values():
        for text in secrets.values():
            with contextlib.suppress(ValueError):
                yield parse_reference(text)


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets of one run."""

    steps: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    masker: Masker = field(default_factory=Masker)

    def of(self, step: str) -> Mapping[str, str]:
        """Variable → value of a step."""
        return self.steps.get(step, {})

    @contextlib.contextmanager
    def masked_failures(self) -> Iterator[None]:
        """Failures inside name no secret; their logs are masked where they are written."""
        try:
            yield
        except AttemptFailed as failure:
            failure.detail = self.masker.text(failure.detail)
            raise


class SecretValues:
    """The values that were read in this environment."""

    def __init__(
        self,
        read: Read,
        now_s: Callable[[], float] = time.time,  # a frozen environment's other clocks may stop
        pause: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._read = read
        self._jitter = jitter
        self._now_s = now_s
        self._pause = pause
        self._known: dict[str, tuple[str, float]] = {}  #: reference → value, when it was read

    def resolved(self, references: References, left_s: float) -> Secrets:
        """The secrets of a run whose script has `left_s`.

        Raises AttemptFailed: SECRET_ERROR for one that cannot be read, SECRET_UNAVAILABLE where
        a later attempt may read it.
        """
        until_s = self._now_s() + min(WITHIN_S, left_s / 2)
        steps = {
            step: {name: self._value(name, text, until_s) for name, text in secrets.items()}
            for step, secrets in references.items()
        }
        values = {name: value for step in steps.values() for name, value in step.items()}
        for name, value in values.items():
            if value and not masks(value):
                LOG.warning("the value of %s is too short to be masked in logs", name)
        return Secrets(steps, Masker(value for step in steps.values() for value in step.values()))

    def _value(self, name: str, text: str, until_s: float) -> str:
        value, read_s = self._known.get(text, ("", float("-inf")))
        age_s = self._now_s() - read_s
        if 0 <= age_s < AGE_S:
            return value
        usable = 0 <= age_s < STALE_S
        repeated = (Fault.DENIED,) if usable else (Fault.DENIED, Fault.UNAVAILABLE)
        try:
            value = self._newest(_reference(name, text), until_s, repeated)
        except Unreadable as error:
            if error.fault is Fault.UNAVAILABLE and usable:
                LOG.warning("secret %s: %s; its value of %.0f s ago is used", name, error, age_s)
                return value
            self._known.pop(text, None)
            raise _failure(name, text, error) from None
        self._known[text] = (value, self._now_s())
        return value

    def _newest(self, reference: SecretReference, until_s: float, repeated: Sequence[Fault]) -> str:
        """Read, and again after some faults as long as there is time."""
        for longest_s in _PAUSES_S:
            pause_s = longest_s * (0.5 + self._jitter() / 2)
            if self._now_s() >= until_s:
                raise Unreadable(
                    Fault.UNAVAILABLE, "was not read in the time that a run has for its secrets"
                )
            try:
                return self._read(reference)
            except Unreadable as error:
                late = self._now_s() + pause_s >= until_s
                if error.fault not in repeated or not reference.stored or late:
                    raise
            self._pause(pause_s)
        return self._read(reference)


def _reference(name: str, text: str) -> SecretReference:
    try:
        return parse_reference(text)
    except UnknownScheme:
        problem = "its reference has a scheme that this version of the runner does not know"
        raise AttemptFailed(
            Reason.SECRET_ERROR, f"secret {name}: {problem}: deploy the function again"
        ) from None
    except ValueError as error:
        raise AttemptFailed(Reason.SECRET_ERROR, f"secret {name}: {error}") from None


def _failure(name: str, text: str, error: Unreadable) -> AttemptFailed:
    retried = error.fault is Fault.UNAVAILABLE
    reason = Reason.SECRET_UNAVAILABLE if retried else Reason.SECRET_ERROR
    return AttemptFailed(reason, f"secret {name} ({text}) {error}")
