"""`{account}` and `{region}` in storage paths, replaced by those of a deployment. Pure.

Names of buckets are unique among all accounts, so a definition that is shared cannot have plain
ones: with placeholders each account gets buckets of its own.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from corekit.bucket_names import broken_rule
from corekit.errors import invalid
from corekit.values import replace
from fdl.model import ACCOUNT, REGION, Deployment, Function, Intermediate, Job, Path
from fdl.plan.resources import DeployTarget


def at_place(function: Function, place: DeployTarget) -> Function:
    """The same with every placeholder replaced. Raises INVALID for a name that becomes too long."""
    if function.queued and has_placeholders(function.intermediate):
        declared = function.job or Job()
        between = declared.intermediate or Intermediate(path=function.intermediate)
        function = replace(function, job=replace(declared, intermediate=between))
    filled: Function = _filled(function, place)
    return filled


def has_placeholders(path: Path) -> bool:
    """True for a path that a deployment resolves."""
    return any(one in str(path) for one in (ACCOUNT, REGION))


def _filled(value: Any, place: DeployTarget) -> Any:
    """`value` with its paths replaced; of any type, as declarations have them."""
    if isinstance(value, Path):
        return _path(value, place)
    if isinstance(value, Deployment) and value.bucket:
        return replace(value, bucket=_path(Path(bucket=value.bucket), place).bucket)
    if type(value) is tuple:  # not a named one
        return tuple(_filled(one, place) for one in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    inner = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
    changed = {name: _filled(old, place) for name, old in inner.items()}
    changed = {name: new for name, new in changed.items() if new is not inner[name]}
    return replace(value, **changed) if changed else value


def _path(path: Path, place: DeployTarget) -> Path:
    if not has_placeholders(path):
        return path
    bucket, prefix = (
        text.replace(ACCOUNT, place.account).replace(REGION, place.region)
        for text in (path.bucket, path.prefix)
    )
    if why := broken_rule(bucket):
        raise invalid(f"{path.bucket!r} becomes {bucket!r} here, which is not a bucket name: {why}")
    return Path(bucket=bucket, prefix=prefix)
