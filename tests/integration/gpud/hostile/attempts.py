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


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(1 << 16).decode("latin-1")


def memory_of(pid: int) -> int:
    start = next(line for line in read(f"/proc/{pid}/maps").splitlines() if " rw" in line)
    with open(f"/proc/{pid}/mem", "rb", 0) as file:
        file.seek(int(start.split("-")[0], 16))
        return len(file.read(64))


def trace(pid: int) -> int:
    return checked(libc.ptrace(_PTRACE_ATTACH, pid, None, None))


class Piece(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def read_across(pid: int) -> int:
    there = ctypes.create_string_buffer(8)
    piece = Piece(ctypes.addressof(there), 8)
    call = ctypes.c_long(_PROCESS_VM_READV)
    return checked(libc.syscall(call, pid, ctypes.byref(piece), 1, ctypes.byref(piece), 1, 0))


def signal_to(pid: int) -> None:
    os.kill(pid, 0)


def limit(pid: int) -> tuple[int, int]:
    import resource

    return resource.prlimit(pid, resource.RLIMIT_CPU)


def write(path: str) -> int:
    with open(path, "ab") as file:
        return file.write(b"planted")


def truncate(path: str) -> None:
    os.truncate(path, 0)


def plant(folder: str) -> str:
    Path(folder, "planted").write_bytes(b"planted")
    return "planted"


def listed(folder: str) -> list[str]:
    return os.listdir(folder)


def remove(folder: str) -> str:
    for name in os.listdir(folder):
        os.unlink(Path(folder, name))
    return "all"


def open_to_all(path: str) -> str:
    os.chmod(path, 0o777)
    return "open"


def open_by_folder(path: str) -> str:
    folder = os.open(os.path.dirname(path), os.O_PATH)
    os.chmod(os.path.basename(path), 0o777, dir_fd=folder)
    return "open"


def mark(path: str) -> str:
    os.setxattr(path, "user.mark", b"x")
    return "marked"


def date(path: str) -> str:
    os.utime(path, (0, 0))
    return "dated"


def watch(path: str) -> int:
    watcher = checked(libc.inotify_init1(0))
    return checked(libc.inotify_add_watch(watcher, path.encode(), 0xFFF))


def read_the_log(_: object) -> int:
    """What other workers write to the standard error that all have in common."""
    return os.open("/proc/self/fd/2", os.O_RDONLY | os.O_NONBLOCK)


def linger(_: object) -> None:
    for one in socket.socketpair():
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))


def link(path: str) -> str:
    where = f"{os.environ.get('TMPDIR', '/tmp')}/link-{os.getpid()}"
    os.link(path, where)
    return read(where)


def shell(_: object) -> int:
    command = [b"/bin/sh", b"-c", b"exit 7", None]
    arguments = (ctypes.c_char_p * 4)(*command)
    pid = ctypes.c_int()
    failed = libc.posix_spawn(ctypes.byref(pid), command[0], None, None, arguments, None)
    if failed:
        raise OSError(failed, os.strerror(failed))
    return os.waitstatus_to_exitcode(os.waitpid(pid.value, 0)[1])


def fail(why: str) -> str:
    raise OSError(why)


def become_shell(_: object) -> None:
    """In this process, whose lanes would be the shell's: never tried where it succeeds."""
    os.execv("/bin/sh", ["/bin/sh", "-c", "exit 7"])


def fork(_: object) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def connect(port: int) -> object:
    with socket.create_connection(("127.0.0.1", port), 5) as stream:
        return stream.getpeername()


def abstract(name: str) -> str:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(b"\0" + name.encode())
        return "connected"


def local(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(path)
        return "connected"


def listen(_: object) -> object:
    with socket.create_server(("127.0.0.1", 0)) as stream:
        return stream.getsockname()


def listen_unbound(_: object) -> object:
    """`listen` binds by itself."""
    with socket.socket() as stream:
        stream.listen()
        return stream.getsockname()


def datagrams(_: object) -> None:
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for one in pair:
        one.close()


def reconnect(port: int) -> str:
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


def taken_descriptor(pid: int) -> int:
    pidfd = checked(libc.syscall(ctypes.c_long(_PIDFD_OPEN), pid, 0))
    return checked(libc.syscall(ctypes.c_long(_PIDFD_GETFD), pidfd, 3, 0))


def user_namespace(_: object) -> int:
    return checked(libc.unshare(_CLONE_NEWUSER))


def mount(_: object) -> int:
    return checked(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))


def kernel_call(number: int) -> int:
    return checked(libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0))


def become_root(_: object) -> None:
    os.setuid(0)


def shared_memory(_: object) -> int:
    return checked(libc.shmget(1234, 4096, 0o1666))


def leave_a_process(mark: str) -> int:
    """One that lives on, started as the linker of a compiler would be."""
    command = [LOADER.encode(), b"/bin/sleep", mark.encode(), None]
    arguments = (ctypes.c_char_p * 4)(*command)
    pid = ctypes.c_int()
    failed = libc.posix_spawn(ctypes.byref(pid), command[0], None, None, arguments, None)
    if failed:
        raise OSError(failed, os.strerror(failed))
    return pid.value


def fill_tasks(most: int) -> int:
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


def fault(_: object) -> bytes:
    return ctypes.string_at(1)


def executable_memory(_: object) -> object:
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


def run(what: list[tuple[str, str]], on: dict[str, object]) -> dict[str, tuple[str | None, str]]:
    """Pairs of an attempt and its target's name → (what it got, or None; why it got nothing)."""
    found: dict[str, tuple[str | None, str]] = {}
    for name, target in what:
        try:
            found[f"{name} {target}"] = (repr(ATTEMPTS[name](on.get(target))), "")
        except (OSError, ValueError) as error:
            found[f"{name} {target}"] = (None, f"{type(error).__name__}: {error}")
    return found


def main() -> None:
    asked = json.load(sys.stdin)
    if "sleep" in asked:
        time.sleep(asked["sleep"])
    sys.stdout.write(json.dumps(run(asked["what"], asked["on"])))


if __name__ == "__main__":
    main()
