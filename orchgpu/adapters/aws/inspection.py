"""The calls of checks, performed by boto3: read-only ones, each of them once."""

from __future__ import annotations

import json
from collections.abc import Callable

from botocore import xform_name

from corekit.errors import AppError, invalid
from orchgpu.adapters.aws.api import Client, translated
from orchgpu.inspection.model import Answer, Read, ReadCall

#: Beginnings of the names of operations that change nothing.
_READING = ("Describe", "Get", "Head", "List", "Simulate")


def reader(client: Callable[[str], Client]) -> Read:
    """Performs calls by the clients of one account and region; every answer has all its pages."""
    answers: dict[str, Answer | AppError] = {}

    def read(call: ReadCall) -> Answer:
        if not call.operation.startswith(_READING):
            raise invalid(f"{call.action} may change something; a check only reads")
        key = json.dumps([call.service, call.operation, call.arguments], sort_keys=True)
        if key not in answers:
            try:
                answers[key] = _answer(client(call.service), call)
            except AppError as error:
                reason = error.message.partition(": ")[2]
                answers[key] = AppError(error.code, f"{call.action}: {reason}")
        answer = answers[key]
        if isinstance(answer, AppError):
            raise answer
        return answer

    return read


def _answer(client: Client, call: ReadCall) -> Answer:
    method = xform_name(call.operation)
    if client.can_paginate(method):
        with translated(call.action):
            pages = client.get_paginator(method).paginate(**call.arguments)
            full: Answer = pages.build_full_result()
        return full
    answer: Answer = getattr(client, method)(**call.arguments)
    return answer
