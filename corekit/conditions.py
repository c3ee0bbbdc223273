"""Conditions: JMESPath expressions over one document that are true or false.

Pure: equal document, equal answer. Used by `when:` of a workflow's inputs, whose document is the
result of a job (`DOCUMENT`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import jmespath
from jmespath.exceptions import IncompleteExpressionError, JMESPathError, ParseError
from jmespath.functions import Functions

from corekit.suggest import one_of_known

#: Of an expression: it is evaluated for every job of a step, in every fold.
CHARACTERS_MAX = 1024
#: What an expression about a job's result may name: keys of the result record (`contract.result`).
DOCUMENT = ("attempt", "device", "document", "exit_code", "files", "notes", "times")
#: The product of the lengths of all lists and objects that an expression makes: each may double the
#: work of those around it, and it is evaluated on the event loop.
MADE_MAX = 64
#: Expressions that stay compiled.
_COMPILED_MAX = 256


class BadCondition(ValueError):
    """An expression that no document satisfies, because it is not valid."""

    def __init__(self, message: str, column: int = 0) -> None:
        """`column`: in the expression, counted from 0."""
        super().__init__(message)
        self.column = column


class ConditionFailed(ValueError):
    """An expression that has no answer for this document."""


def check_condition(text: str, names: tuple[str, ...] = DOCUMENT) -> None:
    """Raises BadCondition for a text that is not JMESPath, or names what the document lacks."""
    for node in _at_root(_compiled(text).parsed):
        if node["value"] not in names:
            message = f"the result has no {node['value']!r}{one_of_known(node['value'], names)}"
            raise BadCondition(message, max(0, text.find(node["value"])))


def holds(text: str, document: Mapping[str, object]) -> bool:
    """Whether a condition holds. Raises ConditionFailed unless it is true or false."""
    try:
        answer = _compiled(text).search(document)
    except TypeError:
        raise ConditionFailed(f"{text}: it compares values that have no order") from None
    except Exception as error:
        raise ConditionFailed(f"{text}: {_one_line(error)}") from None
    if not isinstance(answer, bool):
        shown = "null" if answer is None else type(answer).__name__
        raise ConditionFailed(f"{text}: it is {shown}, neither true nor false")
    return answer


@lru_cache(_COMPILED_MAX)
def _compiled(text: str) -> Any:
    if len(text) > CHARACTERS_MAX:
        raise BadCondition(f"longer than {CHARACTERS_MAX} characters")
    try:
        compiled = jmespath.compile(text)
    except IncompleteExpressionError:
        raise BadCondition("the expression ends too early", len(text)) from None
    except ParseError as error:
        column = min(len(text), int(error.lex_position))
        hint = "; a number is written in backticks, as in `0.9`" if _is_number(text, column) else ""
        raise BadCondition(
            f"not a JMESPath expression: column {column + 1}{hint}", column
        ) from None
    except (JMESPathError, RecursionError, ValueError) as error:
        raise BadCondition(f"not a JMESPath expression: {_one_line(error)}") from None
    made = 1
    for node in _all(compiled.parsed):
        if node["type"] in ("multi_select_list", "multi_select_dict"):
            made *= len(node["children"])
            if made > MADE_MAX:
                raise BadCondition("it makes too many lists or objects: compare single values")
        if node["type"] == "function_expression":
            _check_call(text, node)
        elif node["type"] == "subexpression" and node["children"][0]["type"] == "not_expression":
            # JMESPath binds `!` closer than the dot
            raise BadCondition("`!a.b` is `(!a).b`, always null: write !(a.b)", text.find("!"))
    return compiled


def _check_call(text: str, node: Mapping[str, Any]) -> None:
    name, count = node["value"], len(node["children"])
    column = max(0, text.find(name))
    known = Functions.FUNCTION_TABLE
    if name not in known:
        raise BadCondition(f"no function {name!r}{one_of_known(name, known)}", column)
    signature = known[name]["signature"]
    several = bool(signature) and bool(signature[-1].get("variadic"))
    if count < len(signature) if several else count != len(signature):
        wanted = f"{'at least ' if several else ''}{len(signature)}"
        raise BadCondition(f"{name}() takes {wanted} argument(s), not {count}", column)


def _all(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += [child for child in one["children"] if isinstance(child, dict)]


#: Nodes whose later children see what the first one gives, not the document.
_FIRST_ONLY = frozenset(
    {
        "subexpression",
        "index_expression",
        "pipe",
        "projection",
        "value_projection",
        "filter_projection",
        "flatten",
    }
)


def _at_root(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The fields that are looked up in the document itself."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one["type"] == "field":
            yield one
        elif one["type"] in _FIRST_ONLY:
            waiting += one["children"][:1]
        elif one["type"] != "expref":
            waiting += [child for child in one["children"] if isinstance(child, dict)]


def _is_number(text: str, column: int) -> bool:
    return text[column : column + 1].isdigit() or text[column : column + 1] in ("-", ".")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
