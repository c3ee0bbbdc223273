"""What code that has taken over a worker tries. Each attempt returns what it got; OSError: nothing.

As a script: `attempts.py` reads {"what": […], "on": {…}} from stdin and prints what it found.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import socket
import sys
import threading
import time
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
_PTRACE_ATTACH, _TIOCSTI, _CLONE_NEWUSER = 16, 0x5412, 0x10000000
_IOURING_SETUP, _BPF, _USERFAULTFD, _PERF, _KEYCTL = 425, 321, 323, 298, 250
_PROCESS_VM_READV, _PIDFD_OPEN, _PIDFD_GETFD = 310, 434, 438
LOADER = "/lib64/ld-linux-x86-64.so.2"


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def read(path):
    with open(path, "rb") as file:
        return file.read(1 << 16).decode("latin-1")


def memory_of(pid):
    start = next(line for line in read(f"/proc/{pid}/maps").splitlines() if " rw" in line)
    with open(f"/proc/{pid}/mem", "rb", 0) as file:
        file.seek(int(start.split("-")[0], 16))
        return len(file.read(64))


def trace(pid):
    return checked(libc.ptrace(_PTRACE_ATTACH, pid, None, None))


class Piece(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def read_across(pid):
    there = ctypes.create_string_buffer(8)
    piece = Piece(ctypes.addressof(there), 8)
    call = ctypes.c_long(_PROCESS_VM_READV)
    return checked(libc.syscall(call, pid, ctypes.byref(piece), 1, ctypes.byref(piece), 1, 0))


def signal_to(pid):
    return os.kill(pid, 0)


def limit(pid):
    import resource

    return resource.prlimit(pid, resource.RLIMIT_CPU)


def write(path):
    with open(path, "ab") as file:
        return file.write(b"planted")


def truncate(path):
    return os.truncate(path, 0)


def plant(folder):
    Path(folder, "planted").write_bytes(b"planted")
    return "planted"


def listed(folder):
    return os.listdir(folder)


def remove(folder):
    return [os.unlink(Path(folder, name)) for name in os.listdir(folder)] or "all"


def open_to_all(path):
    return os.chmod(path, 0o777) or "open"


def open_by_folder(path):
    folder = os.open(os.path.dirname(path), os.O_PATH)
    return os.chmod(os.path.basename(path), 0o777, dir_fd=folder) or "open"


def mark(path):
    return os.setxattr(path, "user.mark", b"x") or "marked"


def date(path):
    return os.utime(path, (0, 0)) or "dated"


def watch(path):
    watcher = checked(libc.inotify_init1(0))
    return checked(libc.inotify_add_watch(watcher, path.encode(), 0xFFF))


def read_the_log(_):
    """What other workers write to the standard error that all have in common."""
    return os.open("/proc/self/fd/2", os.O_RDONLY | os.O_NONBLOCK)


def linger(_):
    pair = socket.socketpair()
    return [one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8)) for one in pair]


def link(path):
    where = f"{os.environ.get('TMPDIR', '/tmp')}/link-{os.getpid()}"
    os.link(path, where)
    return read(where)


def shell(_):
    command = [b"/bin/sh", b"-c", b"exit 7", None]
    arguments = (ctypes.c_char_p * 4)(*command)
    pid = ctypes.c_int()
    failed = libc.posix_spawn(ctypes.byref(pid), command[0], None, None, arguments, None)
    if failed:
        raise OSError(failed, os.strerror(failed))
    return os.waitstatus_to_exitcode(os.waitpid(pid.value, 0)[1])


def fail(why):
    raise OSError(why)


def become_shell(_):
    """In this process, whose lanes would be the shell's: never tried where it succeeds."""
    os.execv("/bin/sh", ["/bin/sh", "-c", "exit 7"])


def fork(_):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def connect(port):
    with socket.create_connection(("127.0.0.1", port), 5) as stream:
        return stream.getpeername()


def abstract(name):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(b"\0" + name.encode())
        return "connected"


def local(path):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(path)
        return "connected"


def listen(_):
    with socket.create_server(("127.0.0.1", 0)) as stream:
        return stream.getsockname()


def datagrams(_):
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return [one.close() for one in pair]


def reconnect(port):
    """The lane's own socket, taken apart and connected elsewhere."""
    for name in os.listdir("/proc/self/fd"):
        try:
            stream = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with stream:
            if stream.family == socket.AF_INET:
                nowhere = ctypes.create_string_buffer(16)
                checked(libc.connect(stream.fileno(), nowhere, 16))
                stream.connect(("127.0.0.1", port))
                return "connected"
    return fail("no socket of TCP here")


def taken_descriptor(pid):
    pidfd = checked(libc.syscall(ctypes.c_long(_PIDFD_OPEN), pid, 0))
    return checked(libc.syscall(ctypes.c_long(_PIDFD_GETFD), pidfd, 3, 0))


def user_namespace(_):
    return checked(libc.unshare(_CLONE_NEWUSER))


def mount(_):
    return checked(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))


def kernel_call(number):
    return checked(libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0))


def become_root(_):
    return os.setuid(0)


def shared_memory(_):
    return checked(libc.shmget(1234, 4096, 0o1666))


def leave_a_process(mark):
    """One that lives on, started as the linker of a compiler would be."""
    command = [LOADER.encode(), b"/bin/sleep", mark.encode(), None]
    arguments = (ctypes.c_char_p * 4)(*command)
    pid = ctypes.c_int()
    failed = libc.posix_spawn(ctypes.byref(pid), command[0], None, None, arguments, None)
    if failed:
        raise OSError(failed, os.strerror(failed))
    return pid.value


def fill_tasks(most):
    """Threads, until the kernel gives no more; they end with this attempt."""
    over, before = threading.Event(), threading.stack_size(1 << 15)
    threads = []
    try:
        for _ in range(most):
            thread = threading.Thread(target=over.wait, daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        raise OSError(f"no more than {len(threads)} tasks") from None
    finally:
        over.set()
        for thread in threads:
            thread.join()
        threading.stack_size(before)
    return len(threads)


def fault(_):
    return ctypes.string_at(1)


def executable_memory(_):
    """Not held back: it shows that the attempts run with all that native code can do."""
    with mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page[:6] = b"\xb8\x2a\x00\x00\x00\xc3"  # mov eax, 42; ret
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        found = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
        del address
        return found


ATTEMPTS = {
    name: value
    for name, value in globals().items()
    if callable(value) and not name.startswith("_") and name not in ("Piece", "Path", "checked")
}


def run(what, on):
    """Pairs of an attempt and its target's name → [what it got, or None; why it got nothing]."""
    found = {}
    for name, target in what:
        try:
            found[f"{name} {target}"] = [repr(ATTEMPTS[name](on.get(target))), ""]
        except (OSError, ValueError) as error:
            found[f"{name} {target}"] = [None, f"{type(error).__name__}: {error}"]
    return found


def main():
    asked = json.load(sys.stdin)
    if "sleep" in asked:
        time.sleep(asked["sleep"])
    sys.stdout.write(json.dumps(run(asked["what"], asked["on"])))


if __name__ == "__main__":
    main()
