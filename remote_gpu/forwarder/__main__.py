"""`python3 -m remote_gpu.forwarder ENV_JSON COMMAND…`: a program with what an envelope lends it.

For functions that our runner does not run (`completion: object`): their script unpacks the envelope
and puts this in front of its program, which may be an unmodified client of another middleware. The
session lasts as long as the program; the exit status is the program's, 128 + n for signal n.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from remote_gpu.client import Refused, Session
from remote_gpu.forwarder import client_variables
from remote_gpu.wire.errors import WireError

#: Lambda's longest run: the lease's own length ends it before.
_CAP_S = 900.0
_USAGE_STATUS = 2
#: As `corekit.errors` has it: the other side does not answer.
_REFUSED_STATUS = 8


def main(arguments: list[str]) -> int:
    """Run the command; the status to exit with."""
    if len(arguments) < 2:
        return _told("usage: python3 -m remote_gpu.forwarder ENV_JSON COMMAND…", _USAGE_STATUS)
    try:
        given = json.loads(Path(arguments[0]).read_bytes())
        session = Session.open(given["connection"], _CAP_S)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return _told(f"{arguments[0]} is no env.json of an envelope: {error!r}", _USAGE_STATUS)
    except Refused as refused:
        return _told(f"the lease could not be claimed: {refused}", _REFUSED_STATUS)
    try:
        return _run(session, given, arguments[1:])
    except WireError as error:
        return _told(str(error), _USAGE_STATUS)
    except OSError as error:
        return _told(f"{arguments[1]} cannot be started: {error}", _USAGE_STATUS)
    finally:
        session.close()


def _run(session: Session, given: dict[str, object], command: list[str]) -> int:
    variables = given.get("variables")
    with (
        tempfile.TemporaryDirectory() as folder,
        client_variables(
            session.view(),
            str(given.get("middleware", "")),
            variables if isinstance(variables, dict) else {},
            Path(folder),
        ) as of_client,
    ):
        environment = {**os.environ, **session.environment(), **of_client}
        status = subprocess.run(command, env=environment, check=False).returncode
    return status if status >= 0 else 128 - status


def _told(text: str, status: int) -> int:
    sys.stderr.write(f"remote_gpu.forwarder: {text}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
