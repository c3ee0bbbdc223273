"""Run as root: `as_user.py USER FOLDER… -- COMMAND…` becomes COMMAND of an ordinary user.

Python and the tree under test are made reachable for it, wherever they lie, by mounts of its own.
"""

import os
import sys
from pathlib import Path

from remote_gpu.worker.isolation import namespaces, places, users, veil

if __name__ == "__main__":
    end = sys.argv.index("--")
    user, folders, command = int(sys.argv[1]), sys.argv[2:end], sys.argv[end + 1 :]
    namespaces.leave_mounts()
    veil.draw([*places.libraries(), *map(Path, folders)])
    users.become(user, user)
    os.execv(command[0], command)
