"""The contract of a core: events in; durable changes and actions out.

A core is synchronous and deterministic. Time is `event.at_s`; a timer is an action that comes back
as an event; ids come from a seeded `IdSource`; configuration is a frozen value; a refusal or a wait
is data. The one driver (`corekit.aio.driver`) and the simulator only call `handle`:

    event → handle → append *changes* to the journal, one sync per group → run the *actions*,
    each of which ends in the next event.

Recovery applies the journalled changes with `apply` and never consults a policy.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

EventT = TypeVar("EventT", contravariant=True)
ChangeT = TypeVar("ChangeT")
ActionT = TypeVar("ActionT")


class Decision(NamedTuple, Generic[ChangeT, ActionT]):
    """The outcome of one event."""

    changes: tuple[ChangeT, ...] = ()  #: must be durable before any action runs
    actions: tuple[ActionT, ...] = ()  #: the effects, in this order


class Machine(Protocol[EventT, ChangeT, ActionT]):
    """A core. `handle` and `apply` are its only mutators; neither ever awaits."""

    def handle(self, event: EventT) -> Decision[ChangeT, ActionT]:
        """Decide; the returned changes are already applied to the machine's own state."""
        ...

    def apply(self, change: ChangeT) -> None:
        """Replay one journalled change during recovery, without a decision."""
        ...
