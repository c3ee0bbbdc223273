"""The variables that each middleware's client needs, with the grammar of their values.

One list for both sides: a middleware declares its `ClientRules`, an orchestrator renders by them,
and a runner takes nothing else from an envelope, which could name LD_PRELOAD. A function's package
holds the rules of all middlewares as `middlewares.json` beside this file. A client connects to the
forwarder in its own function only, so every address is the loopback. The ports are known only
there: an envelope writes `{0}` for the port of the lease's first host, `{1}` for the second, and
`{file}` for the configuration file that the forwarder writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from remote_gpu.wire.errors import WireError

PORT = r"\{\d{1,2}\}"  #: not a number: port 9001 is Lambda's runtime interface
ADDRESS = rf"127\.0\.0\.1:{PORT}"
_LOOPBACK = "127.0.0.1"
TABLE = Path(__file__).with_name("middlewares.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRules:
    """The rules of one middleware for the function's side, as data: its code does not travel."""

    #: name of a variable → its values, both as regular expressions for whole strings
    variables: Mapping[str, str] = field(default_factory=dict)
    #: Consecutive ports of the server that its clients reach.
    ports: int = 1
    #: Loopback address of the forwarder; one of its own for a client that compares addresses.
    address: str = _LOOPBACK
    #: Contents of the client's configuration file, with `{0}` for the first host's port; "" = none.
    file: str = ""


def read_rules(text: str) -> dict[str, ClientRules]:
    """The rules of each middleware; keys of newer versions are left out."""
    known = ClientRules.__slots__
    return {
        name: ClientRules(**{key: value for key, value in rules.items() if key in known})
        for name, rules in json.loads(text).items()
    }


RULES: Mapping[str, ClientRules] = read_rules(TABLE.read_text(encoding="utf-8"))


def rules_of(middleware: str) -> ClientRules:
    """Raises WireError for a middleware without rules here."""
    if middleware not in RULES:
        raise WireError(f"unknown middleware {middleware!r}; known are {', '.join(RULES)}")
    return RULES[middleware]


def check_variables(
    middleware: str, rules: ClientRules, variables: Mapping[str, str]
) -> dict[str, str]:
    """`variables`, when the rules allow each of them and its value.

    Raises WireError naming the middleware, variable or value that is not allowed.
    """
    for name, value in variables.items():
        grammars = rules.variables.items()
        values = next((v for n, v in grammars if re.fullmatch(n, name, re.ASCII)), None)
        if values is None:
            raise WireError(f"middleware {middleware} may not set {name!r}")
        if not isinstance(value, str) or not re.fullmatch(values, value, re.ASCII):
            raise WireError(f"middleware {middleware}: {value!r} is not a valid value of {name}")
    return dict(variables)


def allowed_variables(middleware: str, variables: Mapping[str, str]) -> dict[str, str]:
    """`variables` of an envelope, when the middleware may set them. Raises WireError."""
    return check_variables(middleware, rules_of(middleware), variables)


def filled_variables(
    middleware: str, variables: Mapping[str, str], ports: Sequence[int], file: str
) -> dict[str, str]:
    """`variables` with the forwarder's ports, by host of the lease, and its file in them.

    Raises WireError for a variable that is not allowed, and for a host outside the lease.
    """
    values = {str(number): str(port) for number, port in enumerate(ports)} | {"file": file}

    def value(found: re.Match[str]) -> str:
        if found[1] not in values:
            raise WireError(f"{found[0]} in a variable of {middleware} is not a host of the lease")
        return values[found[1]]

    allowed = allowed_variables(middleware, variables)
    address = rules_of(middleware).address
    return {
        name: re.sub(r"\{(\w+)\}", value, text).replace(_LOOPBACK, address)
        for name, text in allowed.items()
    }


def client_file(middleware: str, port: int) -> str:
    """Contents of the configuration file of the middleware's client; "" = it has none."""
    return rules_of(middleware).file.replace("{0}", str(port))
