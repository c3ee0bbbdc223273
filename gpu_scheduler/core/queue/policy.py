"""The interface of queue policies, in two forms.

An *ordering* policy names the next request; the dispatcher places it, keeps an index of what may
fit, and never leaves a request waiting that fits. A *deciding* policy also names the devices, or
decides that a request had better wait although devices are free. It reads a `View` and remembers
a few values, which are journalled with its decisions: recovery never asks a policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeGuard, runtime_checkable

from corekit.budget import Budget
from corekit.ids import AttemptId, DeviceId
from gpu_scheduler.core.queue.queue import FirstByClass
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.policy_parameters import PolicyParameter
from gpu_scheduler.protocol.changes import Scalar, Waiting

if TYPE_CHECKING:  # the state has policies
    from gpu_scheduler.core.queue.policy_view import View
    from gpu_scheduler.core.state import StateView

#: Changed values of a policy's memory; None removes a value.
Remembered = Mapping[str, Scalar | None]
#: Most values that one policy remembers: two for each device of the largest inventory in
#: `benchmarks.scheduler.decision`.
MEMORY_MAX = 20_000
#: Most characters of the name of a value, and of a text that is remembered.
MEMORY_CHARS_MAX = 512
_NOTHING: Remembered = {}


class PolicyView(Protocol):
    """The input of an ordering policy; a `Transaction` is one."""

    @property
    def state(self) -> StateView: ...
    @property
    def budget(self) -> Budget: ...
    @property
    def at_s(self) -> float: ...
    @property
    def wall_s(self) -> float: ...


@runtime_checkable
class OrderingPolicy(Protocol):
    """The choice of the waiting request that is served next. Stateless: it reads the view only."""

    @property
    def summary(self) -> str:
        """The order of service, in one phrase for `--help` and the documentation."""
        ...

    def order(self, view: PolicyView) -> Iterator[FirstByClass]:
        """Sets of waiting requests; the first that holds a request that fits is served."""
        ...

    def reserve(self, view: PolicyView, head: Waiting) -> tuple[DeviceId, ...]:
        """Devices to reserve for the head of the queue; empty while it may be overtaken."""
        ...

    def backfill_until_s(self, view: PolicyView) -> float | None:
        """Start of the head (monotonic): a lease that ends before then may use its devices."""
        ...


class Choice(NamedTuple):
    """The next grant, as a deciding policy chose it. The devices must fit the request now."""

    attempt: AttemptId  #: one of `View.waiting`
    devices: tuple[DeviceId, ...]  #: as many as the request has
    remember: Remembered = _NOTHING


class Pause(NamedTuple):
    """The end of a series of grants: nothing more is to be placed now."""

    until_s: float | None = None  #: monotonic: ask again then, without another event; None = never
    remember: Remembered = _NOTHING


class HeldReason(NamedTuple):
    """The reason why a policy lets a request wait, in its own words."""

    text: str
    until_s: float | None = None  #: monotonic: the request waits no longer for this reason


#: Parameters of a policy by name.
Values = Mapping[str, str | float | bool]


class Declaration(NamedTuple):
    """The promises of a policy about waiting."""

    work_conserving: bool  #: after its last grant nothing waits that fits and no rule holds back
    wait_bound: str  #: on the wait of every request that `starves` does not name; "" = none
    starves: str = ""  #: requests that may wait without end; "" = none
    decision_cost: str = ""  #: of one decision: on what its time depends; "" = not stated


@runtime_checkable
class DecidingPolicy(Protocol):
    """The choice of the next request and of its devices, or of a pause.

    Deterministic: the same view gives the same answer. An object keeps nothing between two calls:
    what it needs later is in its memory.
    """

    @property
    def summary(self) -> str:
        """The rule, in one phrase for `--help` and the documentation."""
        ...

    @property
    def parameters(self) -> tuple[PolicyParameter, ...]:
        """Parameters of its own, set as `policy.NAME.PARAMETER`."""
        ...

    def declare(self, values: Values) -> Declaration:
        """The promises about waiting, with these values of its parameters."""
        ...

    def decide(self, view: View) -> Choice | Pause:
        """The next grant; asked again after each grant, until it returns a pause."""
        ...

    def held(self, view: View, waiting: Waiting) -> HeldReason | None:
        """The reason why this request waits, beyond devices that are not free; None = no other."""
        ...


Policy = OrderingPolicy | DecidingPolicy


def is_deciding(policy: Policy) -> TypeGuard[DecidingPolicy]:
    """True for a policy that chooses devices too.

    Asked in every decision; before Python 3.12 `isinstance` takes 25 µs for a protocol. A policy is
    checked in full when it is installed.
    """
    return hasattr(policy, "decide")


def parameters_of(policy: Policy) -> tuple[PolicyParameter, ...]:
    """The parameters that a policy declares; an ordering policy has none."""
    return policy.parameters if is_deciding(policy) else ()


def values_of(name: str, policy: Policy, parameters: Parameters) -> Values:
    """The parameters of a policy that are in force: set, or by default."""
    values: dict[str, str | float | bool] = {}
    for one in parameters_of(policy):
        given = parameters.policy_parameters.get(f"{name}.{one.name}")
        values[one.name] = one.default if given is None else one.read(given)
    return values


def declaration_of(name: str, policy: Policy, parameters: Parameters) -> Declaration:
    """The declaration; an ordering policy conserves work whatever its order is."""
    if is_deciding(policy):
        return policy.declare(values_of(name, policy, parameters))
    # an ordering policy of another package may declare no bound
    promises = (getattr(policy, name, "") for name in ("wait_bound", "starves", "decision_cost"))
    return Declaration(True, *promises)
