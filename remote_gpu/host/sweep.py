"""Run as a script by root: `sweep.py USER SWEEPER` kills every process of USER until there is none.

It takes USER as its effective user alone, so that the kernel lets it signal those processes and
nobody else's; they cannot signal it, because its real and saved users are SWEEPER's. Standard
library only and no import of ours: it is started with `python -I -S` to cost a few milliseconds.
"""

import os
import signal
import sys
import time

_LOOK_S = 0.002  #: a killed process is looked for again until it is gone


def main(user: int, sweeper: int) -> None:
    """Returns when no process has that user. Raises OSError unless root runs it."""
    if min(user, sweeper) <= 0 or user == sweeper:
        raise ValueError("two users beside root are needed")
    os.setgroups([])
    os.setresgid(sweeper, sweeper, sweeper)
    os.setresuid(sweeper, user, sweeper)
    while True:
        try:
            os.kill(-1, signal.SIGKILL)  # all that we may signal, but ourselves
        except ProcessLookupError:
            return
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
