"""Run as a script by root: `kill_user.py USER KILLER` kills processes of USER until there is none.

It takes USER as its effective user alone, so that the kernel lets it signal those processes and
nobody else's; they cannot signal it, because its real and saved users are KILLER's. Standard
library only and no import of ours: it is started with `python -I -S` to cost a few milliseconds.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

_LOOK_S = 0.002  #: a killed process is looked for again until it is gone


def main(user: int, killer: int) -> None:
    """Returns when no process has that user. Raises OSError unless root runs it."""
    if min(user, killer) <= 0 or user == killer:
        raise ValueError("two users beside root are needed")
    os.setgroups([])
    os.setresgid(killer, killer, killer)
    os.setresuid(killer, user, killer)
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all that we may signal, but ourselves
        if not any(_lives(entry, user) for entry in Path("/proc").glob("[0-9]*/status")):
            return
        time.sleep(_LOOK_S)


def _lives(status: Path, user: int) -> bool:
    """Of that user, and more than an entry that its parent has yet to remove."""
    try:
        lines = status.read_text(errors="replace").splitlines()
    except OSError:  # it is gone
        return False
    fields = {line.partition(":")[0]: line.partition(":")[2].split() for line in lines}
    return fields["Uid"][0] == str(user) and fields["State"][0] not in "ZX"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
