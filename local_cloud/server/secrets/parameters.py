"""SSM's calls for parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from local_cloud.model.errors import not_implemented, refused
from local_cloud.model.secrets.parameters import (
    SECURE,
    Parameter,
    ParameterVersion,
    WantedParameter,
    matches,
    shown_value,
)
from local_cloud.server.context import Context
from local_cloud.server.shapes import Body, Shape

Answer = Mapping[str, object]
_PAGE_MAX = 50
_FILTERS = ("Name", "Type", "KeyId")
_OPTIONS = ("Equals", "BeginsWith", "Contains")

SHAPE: dict[str, Shape] = {
    "Description": str,
    "KeyId": str,
    "MaxResults": int,
    "Name": str,
    "NextToken": str,
    "Overwrite": bool,
    "ParameterFilters": [{"Key": str, "Option": str, "Values": [str]}],
    "Tier": str,
    "Type": str,
    "Value": str,
    "WithDecryption": bool,
}


def _put(context: Context, body: Body) -> Answer:
    wanted = WantedParameter(
        name=body["Name"],
        value=body["Value"],
        type=body.get("Type", ""),
        key=body.get("KeyId", ""),
        description=body.get("Description", ""),
        tier=body.get("Tier", "Standard"),
        overwrite=body.get("Overwrite", False),
    )
    version = context.cloud.parameters.put(context.now_s(), wanted)
    return {"Version": version.number, "Tier": wanted.tier}


def _get(context: Context, body: Body) -> Answer:
    name = body["Name"]
    parameter, version = context.cloud.parameters.get(name)
    decrypted = bool(body.get("WithDecryption", False))
    shown = _shown(context, parameter, version) | {
        "Value": shown_value(parameter, version, decrypted=decrypted)
    }
    selected = not name.startswith("arn:") and ":" in name
    return {"Parameter": shown | ({"Selector": ":" + name.partition(":")[2]} if selected else {})}


def _shown(context: Context, parameter: Parameter, version: ParameterVersion) -> dict[str, object]:
    return {
        "Name": parameter.name,
        "Type": parameter.type,
        "Version": version.number,
        "LastModifiedDate": version.modified_at_s,
        "ARN": context.cloud.parameters.arn(parameter),
        "DataType": "text",
    }


def _delete(context: Context, body: Body) -> Answer:
    context.cloud.parameters.delete(body["Name"])
    return {}


def _describe(context: Context, body: Body) -> Answer:
    filters = {}
    for one in body.get("ParameterFilters", ()):
        key, option = one["Key"], one.get("Option", "Equals")
        if key not in _FILTERS or option not in _OPTIONS:
            raise not_implemented(f"ssm DescribeParameters with the filter {key} {option}")
        filters[key] = (option, one.get("Values", []))
    found = [one for one in context.cloud.parameters.all() if matches(one, filters)]
    first, count = _page(body)
    described = [_described(context, one) for one in found[first : first + count]]
    rest = first + count < len(found)
    return {"Parameters": described} | ({"NextToken": str(first + count)} if rest else {})


def _page(body: Body) -> tuple[int, int]:
    token, count = body.get("NextToken", "0"), body.get("MaxResults", _PAGE_MAX)
    if not token.isdecimal():
        raise refused("InvalidNextToken", "The specified token isn't valid.")
    if not 1 <= count <= _PAGE_MAX:
        raise refused("ValidationException", f"MaxResults must be 1 to {_PAGE_MAX}")
    return int(token), count


def _described(context: Context, parameter: Parameter) -> Answer:
    shown = _shown(context, parameter, parameter.versions[-1]) | {"Tier": parameter.tier}
    if parameter.type == SECURE:
        shown["KeyId"] = parameter.key
    if parameter.description:
        shown["Description"] = parameter.description
    return shown


OPERATIONS: dict[str, Callable[[Context, Body], Answer]] = {
    "DeleteParameter": _delete,
    "DescribeParameters": _describe,
    "GetParameter": _get,
    "PutParameter": _put,
}
