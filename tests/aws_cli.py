"""`aws` for the pages: command lines become calls that botocore has, made to a local cloud.

It knows the part of aws-cli that is the same for every operation: parameters by their names, lists
by spaces, structures as JSON or in the shorthand form, `file://`, `--query` and `--output`. A
service, operation or parameter that does not exist is an error, as is a value of a wrong type.

A page has dozens of such commands, and a start of boto3 for each would take half a minute: the
program `aws` only passes its words to this process.
"""

from __future__ import annotations

import json
import socketserver
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import jmespath
from botocore import xform_name
from botocore.config import Config
from botocore.model import OperationModel, Shape
from botocore.validate import validate_parameters

from orchgpu.local.home import Home

#: Names of aws-cli for services that botocore calls otherwise.
_SERVICES = {"s3api": "s3"}
#: Calls that moto does not have: they are checked against their models only.
MODEL_ONLY = {
    ("lambda", "GetAccountSettings"),
    ("service-quotas", "ListServiceQuotas"),
    ("service-quotas", "RequestServiceQuotaIncrease"),
}
#: Parameters that aws-cli fills in.
_DEFAULTS: dict[str, dict[str, Any]] = {"RunInstances": {"MinCount": 1, "MaxCount": 1}}
_GLOBAL = ("query", "output", "region", "profile")


class UsageError(Exception):
    """A command line that aws-cli would refuse."""


@cache
def _session() -> botocore.session.Session:
    """One for all commands: the model of EC2 alone takes 0.1 s to read."""
    return botocore.session.get_session()


def parsed(
    words: Sequence[str], folder: Path = Path()
) -> tuple[OperationModel, dict[str, Any], dict[str, str]]:
    """The operation, its parameters, and the global options; files are those of the folder."""
    service, command, *rest = words
    model = _session().get_service_model(_SERVICES.get(service, service))
    found = {xform_name(one, "-"): one for one in model.operation_names}
    if command not in found:
        raise UsageError(f"{service} has no command {command!r}")
    operation = model.operation_model(found[command])
    shape = operation.input_shape
    members = {} if shape is None else {xform_name(k, "-"): k for k in shape.members}
    parameters: dict[str, Any] = dict(_DEFAULTS.get(operation.name, {}))
    options: dict[str, str] = {}
    for option, values in _options(rest):
        if option in _GLOBAL:
            options[option] = " ".join(values)
        elif option in members and shape is not None:
            member = members[option]
            parameters[member] = _value(values, shape.members[member], folder)
        elif option.removeprefix("no-") in members and not values:
            parameters[members[option.removeprefix("no-")]] = False
        else:
            raise UsageError(f"{service} {command} has no option --{option}")
    if shape is not None:
        validate_parameters(parameters, shape)
    return operation, parameters, options


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    current: tuple[str, list[str]] | None = None
    for word in words:
        if word.startswith("--"):
            if current is not None:
                yield current
            current = (word[2:], [])
        elif current is None:
            raise UsageError(f"unexpected word {word!r}")
        else:
            current[1].append(word)
    if current is not None:
        yield current


def _value(values: list[str], shape: Shape, folder: Path) -> Any:
    given = [(folder / v[7:]).read_text() if v.startswith("file://") else v for v in values]
    if not given:
        return True
    if shape.type_name in ("list", "structure", "map") and given[0].lstrip()[:1] in ("{", "["):
        found = json.loads(" ".join(given))
        return [found] if shape.type_name == "list" and isinstance(found, dict) else found
    if shape.type_name == "list":
        return [_one(text, shape.member) for text in given]
    [text] = given
    return _one(text, shape)


def _one(text: str, shape: Shape) -> Any:
    if shape.type_name in ("structure", "map", "list"):
        return _typed(_Shorthand(text).read(), shape)
    return _typed(text, shape)


def _typed(value: Any, shape: Shape) -> Any:
    match shape.type_name:
        case "structure":
            unknown = set(value) - set(shape.members)
            if unknown:
                raise UsageError(f"{shape.name} has no {', '.join(sorted(unknown))}")
            return {key: _typed(one, shape.members[key]) for key, one in value.items()}
        case "map":
            return {key: _typed(one, shape.value) for key, one in value.items()}
        case "list":
            members = value if isinstance(value, list) else [value]
            return [_typed(one, shape.member) for one in members]
        case "boolean":
            return {"true": True, "false": False}[value]
        case "integer" | "long":
            return int(value)
        case "float" | "double":
            return float(value)
        case _:
            return value


class _Shorthand:
    """`Key=value,List=[a,b],Inner={Key=value}`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> Any:
        found = self._pairs("")
        if self._at != len(self._text):
            raise UsageError(f"not shorthand: {self._text!r}")
        return found

    def _pairs(self, end: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while True:
            key = self._word("=")
            self._at += 1
            found[key] = self._item(end)
            if self._peek() != ",":
                return found
            self._at += 1

    def _item(self, end: str) -> Any:
        match self._peek():
            case "{":
                self._at += 1
                inner: Any = self._pairs("}")
            case "[":
                self._at += 1
                inner = []
                while self._peek() != "]":
                    inner.append(self._item("]"))
                    self._at += self._peek() == ","
            case _:
                return self._word(",]}" if end else ",")
        self._at += 1
        return inner

    def _word(self, ends: str) -> str:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in ends:
            self._at += 1
        return self._text[start : self._at]

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]


def answered(words: Sequence[str], folder: Path) -> str:
    """Make the call of one command line in a folder; its answer as aws-cli prints it."""
    operation, parameters, options = parsed(words, folder)
    service = operation.service_model.service_name
    answer: Any = {}
    if (service, operation.name) not in MODEL_ONLY:
        system = Home(folder / ".orchgpu").read_system()
        assert system is not None
        with closing(
            boto3.Session(botocore_session=_session()).client(
                service,
                endpoint_url=system.endpoint,
                region_name="us-east-1",
                aws_access_key_id="test",
                aws_secret_access_key="test",
                config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}),
            )
        ) as client:
            answer = getattr(client, xform_name(operation.name))(**parameters)
        answer.pop("ResponseMetadata")
    if "query" in options:
        answer = jmespath.search(options["query"], answer)
    if answer in ({}, None):
        return ""
    if options.get("output") == "text":
        shown = answer if isinstance(answer, str) else "\t".join(map(str, answer))
    else:
        shown = json.dumps(answer, indent=4, default=str)
    return f"{shown}\n"


class _Command(socketserver.StreamRequestHandler):
    """One command: a line with its folder and words, and the line of its status and output."""

    def handle(self) -> None:
        folder, *words = json.loads(self.rfile.readline())
        try:
            done = (0, answered(words, Path(folder)))
        except Exception:  # the command fails, and the page's test with it
            done = (1, traceback.format_exc())
        self.wfile.write(json.dumps(done).encode())


_PROGRAM = """\
import json, os, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as stream, stream.makefile("rw") as file:
    file.write(json.dumps([os.getcwd(), *sys.argv[1:]]) + "\\n")
    file.flush()
    status, shown = json.loads(file.readline())
sys.stdout.write(shown)
sys.exit(status)
"""


@contextmanager
def aws_program(folder: Path) -> Iterator[Path]:
    """The file of a Python program that is `aws` as long as the block runs."""
    with socketserver.TCPServer(("127.0.0.1", 0), _Command) as server:
        program = folder / "aws.py"
        program.write_text(_PROGRAM.format(port=server.server_address[1]))
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield program
        finally:
            server.shutdown()
            thread.join()
