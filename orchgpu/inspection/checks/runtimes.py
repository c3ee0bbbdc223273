"""Runtimes of functions, and the boto3 that they get. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orchgpu.inspection.model import Check, Finding, Inspected, Read, Subject, good, warning, wrong

#: The runner needs `os.pidfd_open` and syntax of this version: Amazon Linux 2023, from 3.12 on.
_PYTHON_MIN = (3, 12)
#: The first boto3 with Python 3.12; older ones in a package hide Lambda's own.
_BOTO3_MIN = (1, 28)


def _runtimes(subject: Subject, _read: Read) -> Iterator[Finding]:
    """As declared; no call is made."""
    yield from map(_runtime, subject.functions)


def _runtime(inspected: Inspected) -> Finding:
    where, runtime = inspected.where, inspected.function.function.runtime
    if not inspected.function.in_lambda:
        return good(where, "it runs on hosts, with the Python of gpud")
    if runtime == "image":
        return good(where, "its image has its own Python and boto3")
    if not runtime.startswith("python"):
        return good(where, f"{runtime}: code of its own, without our runner")
    if _version(runtime.removeprefix("python")) < _PYTHON_MIN:
        message = f"{runtime} runs on Amazon Linux 2; on AWS the runner needs Amazon Linux 2023"
        return wrong(where, message, "write runtime: python3.12")
    if not inspected.boto3:
        return good(where, f"{runtime}, with Lambda's own boto3: every version will do")
    if _version(inspected.boto3) < _BOTO3_MIN:
        message = f"its package ships boto3 {inspected.boto3}, which {runtime} cannot use"
        return wrong(where, message, "remove boto3 from extra_payload, or renew it")
    message = f"its package ships boto3 {inspected.boto3}, which hides Lambda's own"
    return warning(where, message, "remove boto3 and botocore from extra_payload if you can")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


CHECK = Check(title="runtimes", examine=_runtimes)
