"""The parameters of a running scheduler: changed by an operator, journalled, in force at once."""

from __future__ import annotations

from corekit.errors import AppError
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.admission import limits
from gpu_scheduler.core.durable import changes as to
from gpu_scheduler.core.queue import dispatch
from gpu_scheduler.core.state import State
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.parameters import DEFAULT, changed, known_name


def parameters(state: State) -> do.ParametersAnswer:
    """What holds now, and which of it was set here; not what only a newer version knows."""
    overridden = tuple(name for name in state.overrides if name not in state.ignored)
    return do.ParametersAnswer(parameters=state.parameters, overridden=overridden)


def room_changed(tx: Transaction, event: on.RoomChanged) -> None:
    """While the disk is full leases end and nobody is granted; then who waits is served."""
    tx.state.has_room = event.has_room
    tx.capacity_freed = event.has_room


def set_parameter(tx: Transaction, event: on.SetAsked) -> None:
    """Idempotent: a value that stands already is not journalled again."""
    state = tx.state
    try:
        if event.value == DEFAULT:
            if event.name not in state.ignored:  # what a newer version set can be taken back
                known_name(event.name)
        else:
            changed(state.parameters, event.name, event.value)
    except AppError as error:
        tx.refuse(event.reply_to, error.code, error.message)
        return
    if state.overrides.get(event.name, DEFAULT) != event.value:
        tx.emit(to.ParameterSet(name=event.name, value=event.value))
        dispatch.reevaluate_all(tx)
        limits.limits_lowered(tx)
    tx.reply(event.reply_to, parameters(state))
