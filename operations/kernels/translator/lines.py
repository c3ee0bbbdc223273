"""The text of a translation; each part is at the line of the source that it translates. Pure."""

from __future__ import annotations

from operations.kernels.lexer.tokens import Token


class Lines:
    """The lines written so far."""

    def __init__(self) -> None:
        self._lines: list[list[str]] = [[]]

    def write(self, line: int, text: str) -> None:
        """Append a text at a line, or at the last line if that is later."""
        while len(self._lines) < line:
            self._lines.append([])
        self._lines[-1].append(text)

    def text(self) -> str:
        return "\n".join(" ".join(parts) for parts in self._lines) + "\n"

    def pragma(self, token: Token) -> None:
        """Write a `#pragma` on its own line."""
        self.write(token.line, "")
        if any(self._lines[-1]):
            self._lines.append([])
        self._lines[-1] = [" ".join(token.text.replace("\\\n", " ").split())]
        self._lines.append([])
