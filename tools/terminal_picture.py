"""Makes a picture of a real terminal session: runs the commands in a terminal, draws what it shows.

    python -m tools.terminal_picture docs/pictures/jobs.svg --setup 'orchgpu up --detach' \
        'orchgpu jobs'

Setup commands are not shown. With --at TEXT the picture is taken as soon as the last command shows
TEXT, which is then interrupted: so a progress bar can be seen. Only what our commands use of a
terminal is understood: lines that are written again, and colours.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 118, 60


def drawn(session: str) -> str:
    """The picture of a terminal's output, of which rich draws the last state of each line."""
    lines = [line.strip("\r") for line in session.rstrip().split("\n")]
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text("\n").join(Text.from_ansi(line) for line in lines))
    svg = console.export_svg(title="", font_aspect_ratio=0.61)
    # rich names a font on a server, which no picture of a page may load
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def run(command: str, at: str | None) -> str:
    """The output of a command in a terminal of its own, to its end or until it shows `at`."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm", "COLUMNS": str(COLUMNS)}
        os.execv("/bin/sh", ["/bin/sh", "-c", command])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    seen = ""
    while at is None or at not in seen:
        try:
            piece = os.read(terminal, 65536).decode("utf-8", "replace")
        except OSError:  # the terminal's other side is closed: the command ended
            break
        if not piece:
            break
        seen += piece
    else:
        os.kill(child, signal.SIGINT)
    os.close(terminal)
    os.waitpid(child, 0)
    return seen


def main() -> None:
    """Run the commands and write the picture."""
    parser = argparse.ArgumentParser(prog="tools.terminal_picture", description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("commands", nargs="+")
    parser.add_argument("--setup", action="append", default=[])
    parser.add_argument("--at", metavar="TEXT")
    arguments = parser.parse_args()
    for command in arguments.setup:
        subprocess.run(["/bin/sh", "-c", command], check=True)  # a command line, as in `run`
    session = ""
    for number, command in enumerate(arguments.commands, 1):
        at = arguments.at if number == len(arguments.commands) else None
        session += f"\x1b[90m$ {command}\x1b[0m\n{run(command, at).rstrip()}\n"
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    arguments.picture.write_text(drawn(session))


if __name__ == "__main__":
    main()
