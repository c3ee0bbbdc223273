"""Names of variables with an effect of their own, and findings about `secrets:`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

from contract.secrets.reference import Scheme
from fdl.diagnostics import NO_FILE, FileFacts, Finding, Severity
from fdl.model import Function
from fdl.plan.resources import DeployTarget

_E, _W = Severity.ERROR, Severity.WARNING
#: Of the runner's own settings.
OUR_NAME = re.compile(r"ORCHGPU_")
#: Variables that the runner sets for every run, over the user's.
SET_BY_RUNNER = (
    "INPUT_FILE_PATH",
    "TMP_INPUT_DIR",
    "TMP_OUTPUT_DIR",
    "STORAGE_OBJECT_KEY",
    "EVENT",
    "EVENT_TIME",
    "INPUT_METADATA",
    "RESULT_FILE",
    "RUN_DIR",
    "TRACEPARENT",
    "PROGRESS_FILE",
    "CHECKPOINT_DIR",
)
#: Variables by which a loader or an interpreter runs code before the program's own.
LOADERS = (
    "LD_PRELOAD",
    "LD_AUDIT",
    "BASH_ENV",
    "ENV",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "PERL5OPT",
    "PERL5DB",
    "RUBYOPT",
    "NODE_OPTIONS",
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "GCONV_PATH",
    "OCL_ICD_VENDORS",
)
#: Search paths of programs and modules.
SEARCHED = (
    "PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "PERL5LIB",
    "RUBYLIB",
    "NODE_PATH",
    "CLASSPATH",
    "IFS",
)
#: Credentials that AWS SDKs prefer to the role of the function.
CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
#: What to do about a secret in clear, with a place for the variable's name.
CLEAR_REMEDY = "keep it in a store and write `secrets: {{{0}: ssm:/NAME}}` next to `lambda`"


def risky(name: str) -> str:
    """The side effect of a variable on the script or its children; empty = none."""
    if name in LOADERS:
        return (
            "loads code into all programs that the script starts; set it inside the script instead"
        )
    if name in CREDENTIALS:
        return "takes the place of the function's role in the script; give the role the access"
    if name in SEARCHED:
        return "changes which programs or modules are found; set it inside the script instead"
    return ""


def secret_findings(
    function: Function, place: DeployTarget | None, files: Mapping[str, FileFacts] | None
) -> Iterator[Finding]:
    """Errors and notes of one function's secrets."""
    path = f"{function.path}.secrets"
    if function.secrets and function.foreign:
        message = (
            "our runner, which reads them, does not run this function's code: let the code read"
            " the store itself, by the function's role"
        )
        yield _E, path, message
    for name, reference in function.secrets.items():
        yield from _name(function, name, f"{path}.{name}")
        if reference.scheme is Scheme.FILE:
            yield from _file(function, reference.name, f"{path}.{name}", place, files)
        yield Severity.NOTE, f"{path}.{name}", f"read from {reference} when a run starts"


def _name(function: Function, name: str, path: str) -> Iterator[Finding]:
    declared = function.function
    for block, variables in (
        ("lambda.container.environment", declared.container.variables),
        ("lambda.environment", declared.variables),
    ):
        if name in variables:
            yield _E, path, f"is in {block} too; keep one"
    if OUR_NAME.match(name) or name in SET_BY_RUNNER:
        yield _E, path, "this name is reserved: the runner sets it"
    elif name in LOADERS or name in SEARCHED:
        yield _E, path, "decides which code the script runs, so no secret may have this name"


def _file(
    function: Function,
    name: str,
    path: str,
    place: DeployTarget | None,
    files: Mapping[str, FileFacts] | None,
) -> Iterator[Finding]:
    if place is not None and not place.local:
        message = (
            "a function on AWS does not reach files of this machine: store the content with"
            " `orchgpu secret put ssm:/NAME --file FILE` and write ssm:/NAME"
        )
        yield _E, path, message
        return
    extra = function.function.extra_payload
    if extra is not None and _inside(name, extra):
        yield (
            _E,
            path,
            f"lies in extra_payload, so the function's package would hold it: move {name!r}",
        )
    if files is None:
        return
    facts = files.get(name, NO_FILE)
    if facts.problem:
        severity = _W if place is None else _E
        yield severity, path, f"{name!r} {facts.problem} (paths start at this file's folder)"
    elif facts.open_to_others:
        yield _W, path, f"{name!r} is readable by other users: chmod 600 {name}"


def _inside(name: str, folder: str) -> bool:
    whole, top = posixpath.normpath(name), posixpath.normpath(folder)
    return top == "." or whole.startswith(f"{top}/")
