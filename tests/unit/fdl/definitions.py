"""Places, code and questions that the tests of definitions share."""

from __future__ import annotations

from typing import Any

from corekit.budget import Budget
from fdl.diagnostics import Severity
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.plan.desired import desired
from fdl.plan.facts import Facts
from fdl.plan.functions import Code
from fdl.plan.groups import deployed
from fdl.plan.resources import DeployTarget

AWS = DeployTarget(account="123456789012", region="eu-west-1")
LOCAL = DeployTarget(account="000000000000", region="us-east-1", local=True)
CODE = Code(sha256="ab" * 32, size=1000)


def resources(
    text: str, place: DeployTarget = AWS, facts: Facts | None = None, code: Code = CODE
) -> list[Any]:
    """All that the first function of a definition needs."""
    function = deployed(parse(text, "f"))[0]
    return list(desired(function, place, code, Budget(), facts).resources)


def only(kind: type, found: list[Any]) -> Any:
    """The one resource of this kind."""
    (one,) = [resource for resource in found if isinstance(resource, kind)]
    return one


def errors(text: str, place: DeployTarget | None = None) -> list[str]:
    """Errors of lint, each with its key."""
    notes = lint(parse(text, "f"), place=place)
    return [f"{n.path}: {n.message}" for n in notes if n.severity is Severity.ERROR]
