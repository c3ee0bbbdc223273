"""Parameter changes by an operator: journalled, and in force at once."""

from __future__ import annotations

from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.core.admission import limits
from gpu_scheduler.core.handlers import departures, records
from gpu_scheduler.core.handlers.departures import push_warm_limits, warm_limits
from gpu_scheduler.core.queue import decide, dispatch, settlement
from gpu_scheduler.core.queue.decide import QueueTransaction
from gpu_scheduler.core.queue.policy import Policy, values_of
from gpu_scheduler.core.state.state import State
from gpu_scheduler.parameters import DEFAULT, canonical_name, changed, known_name
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import host as host_ops


def parameters(
    tx: QueueTransaction,
    event: on.Asked[ops.ParametersOf | ops.SetParameter],  # noqa: ARG001 - it has no fields
) -> answers.ParametersAnswer:
    """The parameters in force, and the names of those that are overridden."""
    state = tx.state
    return answers.ParametersAnswer(
        parameters=state.parameters,
        overridden=tuple(name for name in state.overrides if name not in state.ignored),
        policies=tuple(_declared(name, one, state) for name, one in tx.policies.items()),
    )


def _declared(name: str, policy: Policy, state: State) -> answers.PolicyDeclaration:
    values = values_of(policy, state.parameters, name)
    declared = policy.declare(values)
    return answers.PolicyDeclaration(
        name=name,
        summary=policy.summary,
        decides=not policy.orders,
        work_conserving=declared.work_conserving,
        wait_bound=declared.wait_bound,
        starves=declared.starves,
        decision_cost=declared.decision_cost,
        parameters=policy.parameters,
        values=values,
    )


def room_changed(tx: QueueTransaction, event: on.RoomChanged) -> None:
    """Stop granting while the disk is full; serve the queue when it has room again."""
    tx.state.has_room = event.has_room
    tx.capacity_freed = event.has_room


def set_parameter(
    tx: QueueTransaction, event: on.Asked[ops.SetParameter]
) -> answers.ParametersAnswer:
    """Change one parameter. Idempotent: an unchanged value is not journalled again."""
    state = tx.state
    op = replace(event.op, name=canonical_name(event.op.name, tx.policies))
    if op.value != DEFAULT:
        changed(state.parameters, op.name, op.value, tx.policies)
    elif op.name not in state.ignored:  # an override of a newer version can be removed
        known_name(op.name)
    if state.overrides.get(op.name, DEFAULT) != op.value:
        before, policy = warm_limits(state.parameters), state.parameters.policy
        if op.name == "policy" and tx.policy.promises and op.value != policy:
            settlement.withdraw_all(tx)
        tx.emit(to.ParameterSet(name=op.name, value=op.value))
        decide.switched(tx)
        _push_warm_limits(tx, before)
        departures.rearm(tx)
        dispatch.reevaluate_all(tx)
        records.evict(tx, limits.history_above_limits(state))
    return parameters(tx, event)


def _push_warm_limits(tx: QueueTransaction, before: host_ops.WarmLimits) -> None:
    """Push changed limits of warm workers to every host that is up; others get them on return."""
    if warm_limits(tx.state.parameters) != before:
        for host in tx.state.inventory.hosts.values():
            push_warm_limits(tx, host)
