"""The interface of queue policies: the next grant, or a pause.

A policy names the request that is served next and its devices, or decides that a request had better
wait although devices are free. It reads a `View` and remembers a few values, which are journalled
with its decisions: recovery never asks a policy. An `OrderingPolicy` (ordering.py) only orders the
requests: its base makes the choice from an index of what may fit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from corekit.ids import AttemptId, DeviceId
from gpu_scheduler.core.inventory.devices import fits
from gpu_scheduler.core.placement.placement import place
from gpu_scheduler.core.queue.view import Values, View, including
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.policy_parameters import PolicyParameter
from gpu_scheduler.promises import Estimate, PlannedStep, PromisedStep, Slo, Tradeoff
from gpu_scheduler.protocol.changes import Scalar, Waiting

#: Changed values of a policy's memory; None removes a value.
Remembered = Mapping[str, Scalar | None]
#: Most values that one policy remembers: two for each device of the largest inventory in
#: `benchmarks.scheduler.decision`, or three for each step that is booked in `….admission`
#: there, with a run for each.
MEMORY_MAX = 40_000
#: Most characters of the name of a value, and of a text that is remembered.
MEMORY_CHARS_MAX = 512
_NOTHING: Remembered = {}


class Choice(NamedTuple):
    """The next grant, as a policy chose it. The devices must fit the request now."""

    attempt: AttemptId  #: one of `View.waiting`
    devices: tuple[DeviceId, ...]  #: as many as the request has
    remember: Remembered = _NOTHING
    #: The attempt whose reserved devices it may use; None: its own.
    reservation: str | None = None


class Pause(NamedTuple):
    """The end of a series of grants: nothing more is to be placed now."""

    until_s: float | None = None  #: monotonic: ask again then, without another event; None = never
    remember: Remembered = _NOTHING


class HeldReason(NamedTuple):
    """The reason why a policy lets a request wait, in its own words."""

    text: str
    until_s: float | None = None  #: monotonic: the request waits no longer for this reason


class PromiseAsked(NamedTuple):
    """A run for which a promise is requested."""

    run: str
    steps: tuple[PromisedStep, ...]  #: each after those before it
    slo: Slo | None  #: None: a quote without an objective
    fingerprint: str = ""  #: of its steps and its objective of cost

    @property
    def latency_s(self) -> float | None:
        """The objective of latency; None = it has none."""
        return None if self.slo is None else self.slo.latency_s

    @property
    def cost_usd(self) -> float | None:
        """The objective of cost; None = it has none."""
        return None if self.slo is None else self.slo.cost_usd


class Admission(NamedTuple):
    """The answer to the request of a promise."""

    why: str  #: one sentence
    admitted: bool = False
    #: The bookings; none where a policy only orders by what is due.
    steps: tuple[PlannedStep, ...] = ()
    possible: bool = True  #: False: no placement on known devices meets the objectives
    end_in_s: float | None = None  #: of the plan; of a refusal the earliest that was found
    cost_usd: float | None = None
    frontier: tuple[Tradeoff, ...] = ()
    remember: Remembered = _NOTHING
    estimates: tuple[Estimate, ...] = ()
    critical: tuple[str, ...] = ()


class Declaration(NamedTuple):
    """The promises of a policy about waiting."""

    work_conserving: bool  #: after its last grant nothing waits that fits and no rule holds back
    wait_bound: str  #: on the wait of every request that `starves` does not name; "" = none
    starves: str = ""  #: requests that may wait without end; "" = none
    decision_cost: str = ""  #: of one decision: on what its time depends; "" = not stated


class Policy(ABC):
    """The choice of the next request and of its devices, or of a pause.

    Deterministic: the same view gives the same answer. An object keeps nothing between two calls:
    what it needs later is in its memory.
    """

    summary: str = ""  #: the rule, in one phrase for `--help` and the documentation
    #: Parameters of its own, set as `policy.NAME.PARAMETER`.
    parameters: tuple[PolicyParameter, ...] = ()
    #: True: it serves whatever fits, in its order, from the index of what may fit. Its head is
    #: overtaken a bounded number of times (overtaking.py).
    orders: ClassVar[bool] = False
    #: True: it answers `admit`, and remembers what it promised.
    promises: ClassVar[bool] = False
    #: The shortest pause of a timer: a policy that names the present is asked again soon.
    pause_s_min: ClassVar[float] = 0.01

    @abstractmethod
    def declare(self, values: Values) -> Declaration:
        """The promises about waiting, with these values of its parameters."""

    @abstractmethod
    def decide(self, view: View) -> Choice | Pause:
        """The next grant; asked again after each grant, until it returns a pause."""

    def held(self, view: View, waiting: Waiting) -> HeldReason | None:  # noqa: ARG002
        """The reason why this request waits, beyond devices that are not free; None = no other."""
        return None

    def reserve(self, view: View, head: Waiting) -> tuple[DeviceId, ...]:  # noqa: ARG002
        """Devices to reserve for the head of the queue; only a policy that orders is asked."""
        return ()

    def admit(self, view: View, asked: PromiseAsked) -> Admission:
        """The promise for a run, or its refusal; asked before any step of it begins."""
        raise NotImplementedError(f"{type(self).__name__} gives no promises")

    def newcomer(self, view: View, waiting: Waiting) -> Choice | None:
        """The grant of a request that is not in the queue, if it is chosen next."""
        asked = view.clamped(waiting)
        if asked.count == 1 and place(asked, view.state.inventory, waiting.attempt) is None:
            return None  # as most, while the queue is long
        with including(view.state.queue, waiting):
            answer = self.decide(view)
        return answer if isinstance(answer, Choice) and answer.attempt == waiting.attempt else None

    def preempting(
        self, view: View, waiting: Waiting, freed: tuple[DeviceId, ...]
    ) -> tuple[DeviceId, ...] | None:
        """The devices for a request for which leases were ended on `freed`; None: not yet.

        It is not a decision: another request's turn on those devices would wait for them, and this
        one for its turn, without end.
        """
        asked, inventory = view.clamped(waiting), view.state.inventory
        states = map(inventory.state_of, freed)
        return freed if all(fits(asked, one, waiting.attempt) is None for one in states) else None


def values_of(policy: Policy, parameters: Parameters, name: str | None = None) -> Values:
    """The parameters of a policy, set or by default; without a name, of the one in force."""
    name = name or parameters.policy
    values: dict[str, str | float | bool] = {}
    for one in policy.parameters:
        given = parameters.policy_parameters.get(f"{name}.{one.name}")
        values[one.name] = one.default if given is None else one.read(given)
    return values
