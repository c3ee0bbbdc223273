"""Run as a script: `confine.py RULES DESCRIPTOR COMMAND…` becomes COMMAND, restricted by RULES.

The user's environment comes by the descriptor, and is set only with the command: none of its
variables, such as LD_PRELOAD, has an effect on this process. Started with `python -I -S`: it finds
its own package by its path.
"""

import json
import os
import sys
import types


def main(rules: str, descriptor: int, command: list[str]) -> None:
    """Restrict this process, then become the command. Never returns. Raises OSError."""
    from remote_gpu.isolation.run import confine

    with open(descriptor, encoding="utf-8", errors="surrogateescape") as given:
        environment = json.load(given)
    confine(json.loads(rules))
    try:
        os.execve(command[0], command, environment)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.exit(f"{command[-1]} cannot be started: {error}")


def _find_ourselves() -> None:
    """Make `remote_gpu` importable where the folder above it may not be listed."""
    package = types.ModuleType("remote_gpu")
    package.__path__ = [os.path.dirname(os.path.dirname(__file__))]  # noqa: PTH120 - no pathlib
    sys.modules["remote_gpu"] = package


if __name__ == "__main__":
    _find_ourselves()
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
