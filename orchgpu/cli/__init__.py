"""The `orchgpu` command: parse, call, render. Decisions live elsewhere.

A command's module is imported when the command is used (`corekit.cli.groups`). An expected failure
is one line on standard error and an exit status of `corekit.errors.EXIT_STATUS`.
"""

import sys

try:
    from orchgpu.cli.main import main
except KeyboardInterrupt:  # Ctrl-C in the first moments, before anything could catch it
    sys.stderr.write("orchgpu: interrupted\n")
    sys.exit(130)

__all__ = ["main"]
