"""The role of a program that submits jobs by the URLs of functions (`http: true`)."""

from __future__ import annotations

from collections.abc import Iterator

from orchgpu.permissions.model import RoleKind, Scope, Statement, allow


def _needs(scope: Scope) -> Iterator[Statement]:
    """Both, and no call past the URL: AWS asks for the second one since October 2025."""
    signed = {"StringEquals": {"lambda:FunctionUrlAuthType": "AWS_IAM"}}
    by_url = {"Bool": {"lambda:InvokedViaFunctionUrl": "true"}}
    yield allow("Url", "lambda:InvokeFunctionUrl", on=scope.http_functions, when=signed)
    yield allow("ByUrl", "lambda:InvokeFunction", on=scope.http_functions, when=by_url)


ROLE = RoleKind(
    summary="programs that call the URLs of functions with `http: true`", service="", needs=_needs
)
