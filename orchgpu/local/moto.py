"""`python -m orchgpu.local.moto`: moto in server mode as a program with a ready file.

moto is an optional part (`pip install orchgpu[moto]`); its own command can neither take an
ephemeral port nor tell which one it got. Functions are not run by it: the bridge does that.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from corekit.aio.process import write_ready


def main() -> None:
    """Serve until SIGTERM. Exit status 2 when moto is not installed."""
    parser = argparse.ArgumentParser(prog="orchgpu.local.moto", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="ADDR:PORT")
    parser.add_argument("--ready-file", type=Path, required=True)
    arguments = parser.parse_args()
    address, _, port = arguments.listen.rpartition(":")
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the server's thread inherits it
    try:
        from moto.core.config import default_user_config
        from moto.server import ThreadedMotoServer
    except ImportError as error:
        sys.exit(f"moto is not installed ({error}); pip install 'orchgpu[moto]'")
    default_user_config["lambda"] = {"use_docker": False}
    server = ThreadedMotoServer(address, int(port), verbose=False)
    server.start()
    host, bound = server.get_host_and_port()
    write_ready(arguments.ready_file, {"endpoint": f"http://{host}:{bound}"})
    signal.sigwait(signals)
    server.stop()


if __name__ == "__main__":
    main()
