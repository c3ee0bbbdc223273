"""The parameters of a running scheduler: changed by an operator, journalled, in force at once."""

from __future__ import annotations

from corekit.errors import AppError
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import changes as to
from gpu_scheduler.core import events as on
from gpu_scheduler.core.turn import Turn
from gpu_scheduler.parameters import changed


def set_parameter(turn: Turn, event: on.SetAsked) -> None:
    """Idempotent: a value that stands already is not journalled again."""
    try:
        parameters = changed(turn.state.parameters, event.name, event.value)
    except AppError as error:
        turn.refuse(event.reply_to, error.code, error.message)
        return
    if parameters != turn.state.parameters:
        turn.emit(to.ParametersSet(parameters=parameters))
        turn.capacity_freed = True  # another rule may serve another request
    turn.reply(event.reply_to, do.ParametersAnswer(parameters=parameters))
