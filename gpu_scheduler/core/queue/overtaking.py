"""Bounded overtaking of the head of the queue, under a policy that only orders.

Grants behind the head on devices that it could use are counted. Once they are too many the policy
names devices, which are reserved for it.
"""

from __future__ import annotations

from corekit.ids import DeviceId
from gpu_scheduler.core.admission.quotas import clamped_to_quota, within_quota
from gpu_scheduler.core.inventory.devices import is_feasible, unavailable_reason
from gpu_scheduler.core.placement.capacity import available_mib
from gpu_scheduler.core.queue.decide import QueueTransaction
from gpu_scheduler.core.state.state import HeadReservation
from gpu_scheduler.model import Request
from gpu_scheduler.protocol import changes as to


def count(tx: QueueTransaction, served: to.Waiting, devices: tuple[DeviceId, ...]) -> None:
    """Count a grant behind the head on a device that is feasible for the head."""
    queue = tx.state.queue
    if not tx.policy.orders:
        return
    head = _head(tx)
    if head is None or queue.queue_key(served) <= queue.queue_key(head):
        return
    inventory = tx.state.inventory
    asked = clamped_to_quota(tx.state, head.request)
    if any(is_feasible(asked, inventory.state_of(device).device_class) for device in devices):
        _track_head(tx, head)
        tx.state.head_reservation.overtaken += 1
        queue.overtaken[head.attempt] = tx.state.head_reservation.overtaken
        tx.capacity_freed = True  # `serve` reserves devices when the bound is reached


def _track_head(tx: QueueTransaction, head: to.Waiting | None) -> None:
    """Count overtakes of the current head, and cancel the reservation of a former head."""
    head_reservation = tx.state.head_reservation
    attempt = None if head is None else head.attempt
    if head_reservation.attempt != attempt:
        tx.state.inventory.reserve(head_reservation.devices, None)
        tx.state.head_reservation = HeadReservation(
            attempt, tx.state.queue.overtaken.get(attempt or "", 0)
        )


def maintain(tx: QueueTransaction) -> None:
    """Reserve devices for a head that was overtaken often enough; replace unusable devices."""
    policy = tx.policy
    head = _head(tx) if policy.orders else None
    _track_head(tx, head)
    if head is None:
        return
    if head.attempt in tx.state.preemptions:
        return  # it has devices of its own
    head_reservation, inventory = tx.state.head_reservation, tx.state.inventory
    asked = clamped_to_quota(tx.state, head.request)
    if head_reservation.devices and _all_usable(tx, asked):
        return  # keep the choice: leases on those devices are already ending
    devices = policy.reserve(tx.view(), head)
    if tx.state.preemptions and _reserved_by_others(tx, devices, head.attempt):
        devices = ()  # leases end there for a request that preempts: it is served soon
    if devices or head_reservation.devices:
        inventory.reserve(head_reservation.devices, None)
        head_reservation.devices = devices
        inventory.reserve(devices, head.attempt)


def _reserved_by_others(tx: QueueTransaction, devices: tuple[DeviceId, ...], attempt: str) -> bool:
    entries = (tx.state.inventory.devices[device] for device in devices)
    return any(entry.reserved_for not in (None, attempt) for entry in entries)


def _head(tx: QueueTransaction) -> to.Waiting | None:
    """The first request that waits only for available devices to become free."""
    state, queue, inventory = tx.state, tx.state.queue, tx.state.inventory

    def largest_mib(request: Request) -> int:
        return available_mib(request, inventory)

    while (head := queue.head(inventory.availability_version, largest_mib)) is not None:
        request = head.request
        asked = clamped_to_quota(state, request)
        if not within_quota(state, request):
            queue.suspend(head.attempt)
        elif asked is not request and largest_mib(asked) < request.memory_mib:
            queue.suspend(head.attempt, inventory.availability_version)
        else:
            break
    return head


def _all_usable(tx: QueueTransaction, request: Request) -> bool:
    inventory = tx.state.inventory
    devices = [inventory.devices.get(device) for device in tx.state.head_reservation.devices]
    return all(
        entry is not None
        and unavailable_reason(inventory.state_of(entry.device.id)) is None
        and is_feasible(request, inventory.state_of(entry.device.id).device_class)
        for entry in devices
    )
