"""Components of a botocore session that make each call cheaper and change no answer.

They are for what botocore does itself: lists, the first calls of a kind, repetitions. `calls.py`
makes the calls of jobs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.session import Session
from botocore.utils import parse_timestamp

from contract.aws.clients import service_descriptions

ENDPOINT_RULES = "endpoint-rule-set-1"
#: RFC 7231 in the one form that HTTP servers send, and ISO 8601 in UTC.
_HTTP_DATE = re.compile(r"\w{3}, \d{2} \w{3} \d{4} \d{2}:\d{2}:\d{2} GMT", re.ASCII)
_UTC = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{3,6})?Z", re.ASCII)


def make_lean(session: Session) -> None:
    """Make the clients of a session cheaper; before the first one is made."""
    session.register_component("data_loader", _Descriptions())
    parsers = session.get_component("response_parser_factory")
    parsers.set_parser_defaults(timestamp_parser=read_timestamp)


class _Descriptions:
    """botocore's data files, without the parameters of endpoints that no rule names.

    botocore keeps resolved endpoints by the values of all parameters. `Key` and `Prefix` are such
    parameters of S3 without a rule, so every call about another key would be resolved again.
    """

    def __init__(self) -> None:
        self._all: Any = service_descriptions()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._all, name)

    def load_service_model(
        self, service_name: str, type_name: str, api_version: str | None = None
    ) -> Mapping[str, Any]:
        loaded: Mapping[str, Any] = self._all.load_service_model(
            service_name, type_name, api_version
        )
        return with_named_parameters(loaded) if type_name == ENDPOINT_RULES else loaded


def with_named_parameters(rules: Mapping[str, Any]) -> Mapping[str, Any]:
    """A set of endpoint rules, less the parameters whose name no rule contains."""
    words = set(re.findall(r"\w+", json.dumps(rules["rules"])))
    named = {name: one for name, one in rules["parameters"].items() if name in words}
    return {**rules, "parameters": named}


def read_timestamp(value: object) -> datetime:
    """As botocore reads it, by the standard library where that knows the form."""
    if isinstance(value, str):
        if _HTTP_DATE.fullmatch(value):
            return parsedate_to_datetime(value)
        if _UTC.fullmatch(value):
            return datetime.fromisoformat(value)
    read: datetime = parse_timestamp(value)
    return read
