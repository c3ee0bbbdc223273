"""`python -m orchgpu.infra.machine MACHINE.json`, as root, once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from corekit.decode import decode_json_known
from corekit.errors import AppError
from orchgpu.adapters.aws.machine import AwsMachine, sts_endpoint
from orchgpu.infra.machine.model import Machine
from orchgpu.infra.machine.start import start


def main(arguments: list[str]) -> int:
    """Set this machine up; 1 when that failed."""
    [file] = arguments
    machine, _ = decode_json_known(Machine, Path(file).read_bytes(), file)
    try:
        start(machine, AwsMachine(machine.region), sts_endpoint(machine.region, os.environ), _log)
    except AppError as error:
        _log(error.message)
        return 1
    _log("serves")
    return 0


def _log(text: str) -> None:
    sys.stdout.write(f"orchgpu: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
