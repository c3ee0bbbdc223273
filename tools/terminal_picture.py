"""Makes a picture of a real terminal session: runs the commands in a terminal, draws what it shows.

    python -m tools.terminal_picture docs/pictures/jobs.svg --setup 'orchgpu up --detach' \
        'orchgpu jobs'

Setup commands are not shown. With --at TEXT the picture is taken as soon as the last command shows
TEXT, which is then interrupted: so a progress bar can be seen. Only what our commands use of a
terminal is understood: carriage returns, clearing the rest of a line, and colours.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

COLUMNS, ROWS = 118, 60
CHARACTER_PX, LINE_PX, FONT_PX, MARGIN_PX = 7.4, 17, 12, 14
BACKGROUND, FOREGROUND, PROMPT = "#1e2227", "#d7dae0", "#7f8896"
COLOURS = {"31": "#f07178", "32": "#a5d075", "33": "#e5c07b", "36": "#66c2cd"}
_CONTROL = re.compile(r"\x1b\[(?P<arguments>[0-9;]*)(?P<letter>[A-Za-z])")


@dataclass(slots=True)
class Screen:
    """Lines of coloured characters."""

    lines: list[list[tuple[str, str]]] = field(default_factory=lambda: [[]])
    column: int = 0
    colour: str = FOREGROUND

    def write(self, text: str) -> None:
        """What a terminal does with it; a longer line than it is wide goes on in the next."""
        at = 0
        while at < len(text):
            control = _CONTROL.match(text, at)
            if control is not None:
                self._control(control["letter"], control["arguments"])
                at = control.end()
                continue
            self._put(text[at])
            at += 1

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.lines.append([])
            self.column = 0
        elif character.isprintable():
            if self.column == COLUMNS:
                self._put("\n")
            line = self.lines[-1]
            line[self.column : self.column + 1] = [(character, self.colour)]
            self.column += 1

    def _control(self, letter: str, arguments: str) -> None:
        if letter == "K":
            del self.lines[-1][self.column :]
        elif letter == "m":
            self.colour = COLOURS.get(arguments, FOREGROUND)

    def svg(self) -> str:
        """The picture."""
        shown = list(self.lines)
        while shown and not shown[-1]:
            shown.pop()
        width = max((len(line) for line in shown), default=0) * CHARACTER_PX + 2 * MARGIN_PX
        height = len(shown) * LINE_PX + 2 * MARGIN_PX
        rows = (
            f'<text x="{MARGIN_PX}" y="{MARGIN_PX + LINE_PX * n + FONT_PX}">{_spans(line)}</text>'
            for n, line in enumerate(shown)
            if line
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
            f'font-family="ui-monospace,Menlo,Consolas,monospace" font-size="{FONT_PX}" '
            'xml:space="preserve">'
        )
        ground = f'<rect width="100%" height="100%" rx="6" fill="{BACKGROUND}"/>'
        return "\n".join((head, ground, *rows, "</svg>\n"))


def _spans(line: list[tuple[str, str]]) -> str:
    spans: list[tuple[str, str]] = []
    for character, colour in line:
        if spans and spans[-1][1] == colour:
            spans[-1] = (spans[-1][0] + character, colour)
        else:
            spans.append((character, colour))
    return "".join(f'<tspan fill="{colour}">{escape(text)}</tspan>' for text, colour in spans)


def run(screen: Screen, command: str, at: str | None) -> None:
    """One command in a terminal of its own, to its end or until it shows `at`."""
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
        screen.write(piece)
    else:
        os.kill(child, signal.SIGINT)
    os.close(terminal)
    os.waitpid(child, 0)


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
    screen = Screen()
    for number, command in enumerate(arguments.commands, 1):
        screen.colour = PROMPT
        screen.write(f"$ {command}\n")
        screen.colour = FOREGROUND
        run(screen, command, arguments.at if number == len(arguments.commands) else None)
        if screen.lines[-1]:
            screen.write("\n")
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    arguments.picture.write_text(screen.svg())


if __name__ == "__main__":
    main()
