"""The variables each middleware's own client needs, with the grammar of their values.

One list for both sides: what a middleware renders on the way out, and what a runner takes from an
envelope on the way in. Anything beyond it is refused: it could be LD_PRELOAD.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from remote_gpu.wire.errors import WireError

_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,253}[A-Za-z0-9])?|\[[0-9A-Fa-f:]{2,39}\])"
_PORT = r"[1-9]\d{0,4}"

#: middleware → name of a variable → its values, both as regular expressions for whole strings
ALLOWED: Mapping[str, Mapping[str, str]] = {
    "builtin": {},
    "rcuda": {
        r"RCUDA_DEVICE_COUNT": r"[1-9]\d?",
        r"RCUDA_DEVICE_\d{1,2}": rf"{_HOST}@{_PORT}:\d{{1,2}}",  # port after @, device after :
        r"RCUDAPROTO": r"TCP|IB",
    },
}


def allowed_variables(middleware: str, variables: Mapping[str, str]) -> dict[str, str]:
    """`variables`, when the middleware may set every one of them to its value.

    Raises WireError naming the middleware, variable or value that is not allowed.
    """
    grammar = ALLOWED.get(middleware)
    if grammar is None:
        raise WireError(f"unknown middleware {middleware!r}; known are {', '.join(ALLOWED)}")
    for name, value in variables.items():
        values = next((v for n, v in grammar.items() if re.fullmatch(n, name)), None)
        if values is None:
            raise WireError(f"middleware {middleware} may not set {name!r}")
        if not isinstance(value, str) or not re.fullmatch(values, value):
            raise WireError(f"middleware {middleware}: {value!r} is no value for {name}")
    return dict(variables)
