"""`python -m orchgpu.local.moto`: moto in server mode as a program with a ready file.

moto is an optional part (`pip install orchgpu[moto]`); its own command can neither take an
ephemeral port nor report which one it got, and answers every web page (CORS `*`). It runs no
functions: the bridge does.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from corekit.aio.process import write_ready
from corekit.net.addresses import parse_address
from corekit.net.browsers import HEADERS, foreign_part

ACCOUNT_SETTINGS = "/2016-08-19/account-settings"
LIMITS = ("ConcurrentExecutions", "UnreservedConcurrentExecutions")
CONCURRENCY = 1000  #: the quota of an account

#: As PEP 3333 has them: the environment, `start_response`.
Environment = dict[str, object]
Start = Callable[[str, list[tuple[str, str]]], object]
Wsgi = Callable[[Environment, Start], Iterable[bytes]]


def main() -> None:
    """Serve until SIGTERM. Exit status 1 when moto is not installed."""
    arguments = _parser().parse_args()
    address, port = parse_address(arguments.listen)
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the server's threads inherit it
    try:
        from moto.core.config import default_user_config
        from moto.moto_server.werkzeug_app import (
            DomainDispatcherApplication,
            MotoRequestHandler,
            create_backend_app,
        )
        from werkzeug.serving import make_server
    except ImportError as error:
        sys.exit(f"moto is not installed ({error}); pip install 'orchgpu[moto]'")
    default_user_config["lambda"] = {"use_docker": False}
    application = guarded(
        DomainDispatcherApplication(create_backend_app), (address, *arguments.allow_host)
    )
    application = with_account_settings(application)
    if arguments.one_at_a_time:
        application = one_at_a_time(application)
    server = make_server(
        address, int(port), application, threaded=True, request_handler=MotoRequestHandler
    )
    thread = threading.Thread(target=server.serve_forever, name="moto")
    thread.start()
    write_ready(arguments.ready_file, {"endpoint": f"http://{address}:{server.server_port}"})
    signal.sigwait(signals)
    server.shutdown()
    thread.join()
    server.server_close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="orchgpu.local.moto", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="ADDR:PORT")
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument(
        "--one-at-a-time",
        action="store_true",
        help="Serve requests one after the other: moto's backends have no locks, so that of two "
        "conditional writes both may succeed. Long polls delay all others then.",
    )
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME")
    return parser


def one_at_a_time(application: Wsgi) -> Wsgi:
    """The application behind a lock."""
    lock = threading.Lock()

    def answer(environ: Environment, start: Start) -> Iterable[bytes]:
        with lock:
            return list(application(environ, start))

    return answer


def with_account_settings(application: Wsgi) -> Wsgi:
    """The application with Lambda's GetAccountSettings, which moto does not have."""

    def answer(environ: Environment, start: Start) -> Iterable[bytes]:
        if str(environ.get("PATH_INFO")).rstrip("/") != ACCOUNT_SETTINGS:
            return application(environ, start)
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps({"AccountLimit": dict.fromkeys(LIMITS, CONCURRENCY)}).encode()]

    return answer


def guarded(application: Wsgi, allowed: Iterable[str]) -> Wsgi:
    """The application behind a refusal of what web pages of other sites send."""
    names = tuple(name.lower() for name in allowed)

    def answer(environ: Environment, start: Start) -> Iterable[bytes]:
        found = foreign_part(str(environ["REQUEST_METHOD"]), _headers(environ), "", names)
        if found is None:
            return application(environ, start)
        body = json.dumps({"__type": "AccessDenied", "message": found.refusal()}).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start("403 Forbidden", headers)
        return [body]

    return answer


def _headers(environ: Mapping[str, object]) -> Mapping[str, str]:
    found = {name: environ.get("HTTP_" + name.upper().replace("-", "_")) for name in HEADERS}
    return {name: str(text) for name, text in found.items() if text is not None}


if __name__ == "__main__":
    main()
