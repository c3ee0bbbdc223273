"""Copies of jobs in the dead-letter queue, which a redrive sends back."""

from __future__ import annotations

import json
from collections.abc import Mapping

from orchgpu.core.routing import InputEvent
from orchgpu.core.runs.messages import step_note

DETAIL_CHARS_MAX = 1000
#: SQS's default MaximumMessageSize of a queue; `json.dumps` writes ASCII.
LETTER_BYTES_MAX = 256 * 1024
#: Quoted from a message that is too large or not a valid event; JSON has at most 12 times as many.
QUOTED_CHARS_MAX = 20_000


def dead_letter_body(
    event: Mapping[str, object] | str,
    job: str | None,
    reason: str,
    detail: str,
    dead_at_s: float,
    *,
    source: InputEvent | None = None,
) -> str:
    """An event, or the text of a message, with the reason for its end; a redrive sends it back."""
    note: dict[str, object] = {
        "job_id": job,
        "reason": str(reason),
        "detail": detail[:DETAIL_CHARS_MAX],
        "dead_at": dead_at_s,
    }
    if source is not None and source.step is not None:
        note["step"] = step_note(source.step)
        if source.max_cost_usd is not None:
            note["max_cost_usd"] = source.max_cost_usd
        if source.counts_cost:
            note["counts_cost"] = True
    value = _read(event) if isinstance(event, str) else event
    if isinstance(value, Mapping):
        whole = json.dumps({**value, "orchgpu": note})
        if len(whole) <= LETTER_BYTES_MAX:
            return whole
    quoted = event if isinstance(event, str) else json.dumps(event)
    return json.dumps({"orchgpu": note, "body": quoted[:QUOTED_CHARS_MAX]})


def _read(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
