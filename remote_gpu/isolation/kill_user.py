"""Run as a script by root: `kill_user.py USER KILLER` kills processes of USER until none is left.

Only its effective user becomes USER, so that the kernel lets it signal those processes and no
others; they cannot signal it, because its real and saved users are KILLER. Standard library only,
no import of ours: started with `python -I -S` it costs a few milliseconds.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

_POLL_S = 0.002  #: between two checks for remaining processes


def main(user: int, killer: int) -> None:
    """Return when no process has that user. Raises OSError unless root runs it."""
    if min(user, killer) <= 0 or user == killer:
        raise ValueError("two different users, neither of them root, are needed")
    os.setgroups([])
    os.setresgid(killer, killer, killer)
    os.setresuid(killer, user, killer)
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all processes that this one may signal, except itself
        if not any(_lives(entry, user) for entry in Path("/proc").glob("[0-9]*/status")):
            return
        time.sleep(_POLL_S)


def _lives(status: Path, user: int) -> bool:
    """True for a process of that user that is not a zombie."""
    try:
        lines = status.read_text(errors="replace").splitlines()
    except OSError:  # it is gone
        return False
    fields = {line.partition(":")[0]: line.partition(":")[2].split() for line in lines}
    return fields["Uid"][0] == str(user) and fields["State"][0] not in "ZX"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
