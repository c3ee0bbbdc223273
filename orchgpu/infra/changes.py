"""A change set as lines for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchgpu.infra.model import OWN_PARAMETERS, Change

_SIGNS = {"Add": "+", "Modify": "~", "Remove": "-"}
#: Characters of a value that are shown.
_VALUE_MAX = 60
#: Replacing one of these loses what is in it, or cuts what runs there.
_REPLACED = {
    "AWS::DynamoDB::Table": "the journal would be another, empty table",
    "AWS::EC2::NetworkInterface": "the scheduler gets another address",
}


def lines(changes: Sequence[Change]) -> Iterator[str]:
    """One line for each resource, those of a kind together; under it what of it changes."""
    order = {"Remove": 0, "Modify": 1, "Add": 2}
    for change in sorted(
        changes, key=lambda one: (order.get(one.action, 3), one.kind, one.logical)
    ):
        yield _line(change)
        for name, (before, after) in sorted(change.properties.items()):
            yield (
                f"    {name}: {_short(before)} → {_short(after)}"
                if before or after
                else f"    {name}"
            )


def _line(change: Change) -> str:
    sign = _SIGNS.get(change.action, "?")
    kind = change.kind.removeprefix("AWS::")
    replaced = change.action == "Modify" and change.replacement in ("True", "Conditional")
    named = f" ({change.physical})" if change.physical else ""
    line = f"{sign} {change.logical:<22} {kind}{named}"
    if not replaced:
        return line
    certain = "is replaced" if change.replacement == "True" else "may be replaced"
    why = _REPLACED.get(change.kind)
    return f"{line}: {certain}" + (f"; {why}" if why else "")


def summary(changes: Sequence[Change]) -> str:
    """`47 to make, 2 to change, 1 to remove`."""
    words = {"Add": "to make", "Modify": "to change", "Remove": "to remove"}
    counted = ((sum(c.action == action for c in changes), text) for action, text in words.items())
    return ", ".join(f"{count} {text}" for count, text in counted if count) or "nothing to change"


def settings(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Parameters that a person sets and that change."""
    for name in sorted(after):
        if name not in OWN_PARAMETERS and before.get(name) not in (None, after[name]):
            yield f"{name}: {before[name] or '-'} → {after[name] or '-'}"


def _short(value: str) -> str:
    text = " ".join(value.split())
    return (text if len(text) <= _VALUE_MAX else f"{text[: _VALUE_MAX - 1]}…") or "-"
