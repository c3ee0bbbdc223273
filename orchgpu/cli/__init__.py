"""The `orchgpu` command: parse, call, render. Decisions live elsewhere.

Every command imports what it needs when it runs, so that `orchgpu --help` is immediate. An expected
failure is one line on standard error and an exit status of `corekit.errors.EXIT_STATUS`.
"""

from orchgpu.cli.main import main

__all__ = ["main"]
