"""Unknown values of closed sets from a newer host, replaced by a general value. Pure.

A device with an unknown symptom still has a symptom, and an end with an unknown reason is still an
end: refusing them would lock the host out, or keep the lease alive. Unknown values from people are
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from corekit.decode import decode_known
from corekit.errors import AppError
from gpu_scheduler.model import EndReason, Symptom

T = TypeVar("T")

_DETAIL_CHARS_MAX = 1000
_WORD_CHARS_MAX = 100


def read_reworded(
    cls: type[T], fields: Mapping[str, object], path: str
) -> tuple[T, tuple[str, ...]]:
    """`decode_known`, with unknown values replaced when it refuses them. Raises INVALID."""
    try:
        return decode_known(cls, fields, path)
    except AppError:
        reworded = {**fields, **_reason(fields), **_symptoms(fields)}
        if reworded == fields:
            raise
        return decode_known(cls, reworded, path)


def _reason(fields: Mapping[str, object]) -> dict[str, object]:
    reason = fields.get("reason")
    if not isinstance(reason, str) or reason in [word.value for word in EndReason]:
        return {}
    why = fields.get("detail") or "a reason of a newer version"
    detail = f"{reason[:_WORD_CHARS_MAX]}: {why}"
    return {"reason": EndReason.SESSION_LOST.value, "detail": detail[:_DETAIL_CHARS_MAX]}


def _symptoms(fields: Mapping[str, object]) -> dict[str, object]:
    devices = fields.get("devices")
    return {"devices": [_device(one) for one in devices]} if isinstance(devices, list) else {}


def _device(device: object) -> object:
    if not isinstance(device, dict) or not isinstance(symptoms := device.get("symptoms"), list):
        return device
    known = [Symptom.OTHER.value if _is_unknown(one) else one for one in symptoms]
    return {**device, "symptoms": list(dict.fromkeys(known)) if known != symptoms else symptoms}


def _is_unknown(word: object) -> bool:
    return isinstance(word, str) and word not in [symptom.value for symptom in Symptom]
