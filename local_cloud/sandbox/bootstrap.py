"""The first code in an environment: limits, then AWS's runtime client in the same process.

Run by path as `python3 bootstrap.py PARENT_PID MEMORY_BYTES HANDLER`, so it may import only the
standard library. It dies with its parent, also while it is frozen: nothing else would ever end a
stopped process whose server is gone.
"""

import ctypes
import os
import resource
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the runtime of one environment; returns only when the runtime client ends."""
    parent, memory_bytes, handler = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before we asked
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path[0] = os.environ["LAMBDA_TASK_ROOT"]
    sys.argv = ["awslambdaric", handler]
    runpy.run_module("awslambdaric", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
