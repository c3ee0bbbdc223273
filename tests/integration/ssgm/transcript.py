"""Transcripts in a page of docs: read, run, compared.

    ```console
    $ ssgm leases
    LEASE               STATE   ATTEMPT
    lease-4f0c2a7b9d1e  ACTIVE  …
    ```

A command stands behind `$ `, what it prints below it; a block marked `console background` is
started, and its output compared at the end. Compared are words: `…` in a line stands for anything,
alone on a line for any lines; lengths of time match each other, and so do the numbers beside a
lease (its fence counts what happened before, on a slow machine a little more); an id is the same
thing wherever the page repeats it, whatever it is called in this run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

#: Names that every run makes anew: the page's own stand for those of the run.
_NAME = r"lease-[0-9a-z]{12}|ssgm-[0-9a-f]{16}"
_LENGTH = r"[0-9.]+ ?(?:ms|s|min|h)\b(?: [0-9]+ (?:min|s))?"
_FENCE = r"(?<=  )[0-9]+(?=  )"
_TOKEN = re.compile(
    rf"(?P<name>{_NAME})|(?P<length>{_LENGTH})|(?P<fence>{_FENCE})|(?P<any>…)|(?P<space>\s+)"
)


@dataclass(frozen=True)
class Step:
    """One command of the page with what it should print."""

    line: int  #: of the command in the page
    command: str
    expected: tuple[str, ...]
    background: bool

    def __str__(self) -> str:
        return f"line {self.line}: {self.command}"


def steps_of(page: str) -> Iterator[Step]:
    """All commands, in the order of the page."""
    block = ""
    step: tuple[int, str] | None = None
    said: list[str] = []
    for number, text in enumerate(page.splitlines(), 1):
        if text.startswith("```"):
            if step is not None:
                yield Step(*step, tuple(said), "background" in block)
            block, step, said = ("" if block else text), None, []
        elif not block.startswith("```console"):
            continue
        elif text.startswith("$ "):
            if step is not None:
                yield Step(*step, tuple(said), "background" in block)
            step, said = (number, text.removeprefix("$ ")), []
        elif step is not None and step[1].endswith("\\"):
            step = (step[0], step[1].removesuffix("\\") + text.strip())
        else:
            said.append(text)


@dataclass
class Names:
    """What the page's names are called in this run."""

    known: dict[str, str] = field(default_factory=dict)

    def real(self, text: str) -> str:
        """A command of the page as it is run here. Raises KeyError for a name of no output."""
        return re.sub(_NAME, lambda match: self.known[match[0]], text)

    def difference(self, expected: tuple[str, ...], printed: str) -> str | None:
        """None when the output is as the page says; else what is not. Learns new names."""
        pattern, learnt = self._pattern(expected)
        match = re.fullmatch(pattern, _trimmed(printed))
        if match is None:
            printed = self._as_on_the_page(expected, printed)
            return "the page says\n" + "\n".join(expected) + "\nand printed was\n" + printed
        self.known.update({name: match[group] for group, name in learnt.items()})
        return None

    def _as_on_the_page(self, expected: tuple[str, ...], printed: str) -> str:
        """The output under the page's names, so that the rest of the page can be followed."""
        theirs = dict.fromkeys(re.findall(_NAME, "\n".join(expected)))
        ours = dict.fromkeys(re.findall(_NAME, printed))
        new = [name for name in ours if name not in self.known.values()]
        self.known.update(zip([n for n in theirs if n not in self.known], new, strict=False))
        paged = {ours: theirs for theirs, ours in self.known.items()}
        return re.sub(_NAME, lambda match: paged.get(match[0], match[0]), printed)

    def _pattern(self, expected: tuple[str, ...]) -> tuple[str, dict[str, str]]:
        learnt: dict[str, str] = {}
        lines = []
        for text in expected:
            if text.strip() == "…":
                lines.append(r"(?:.*\n)*?")
            else:
                line = _TOKEN.sub("\0", text.rstrip())
                parts = [re.escape(part) for part in line.split("\0")]
                tokens = [self._token(match, learnt) for match in _TOKEN.finditer(text.rstrip())]
                woven = [parts[0], *(t + p for t, p in zip(tokens, parts[1:], strict=True))]
                lines.append("".join(woven) + r"\n")
        return "".join(lines), learnt

    def _token(self, match: re.Match[str], learnt: dict[str, str]) -> str:
        if match["space"]:
            return r"\s+"
        if match["fence"]:
            return "[0-9]+" if match.string.startswith("lease-") else match["fence"]
        if match["any"]:
            return r"[^\n]*"
        if match["length"]:
            return _LENGTH
        name = match["name"]
        if name in self.known:
            return re.escape(self.known[name])
        for group, before in learnt.items():
            if before == name:
                return f"(?P={group})"
        group = f"name{len(learnt)}"
        learnt[group] = name
        return f"(?P<{group}>{_NAME})"


def _trimmed(printed: str) -> str:
    return "".join(line.rstrip() + "\n" for line in printed.splitlines())


def updated(page: str, step: Step, printed: str) -> str:
    """The page with the output of one command replaced: for a person who changed the output."""
    lines = page.splitlines()
    begin = step.line + (lines[step.line - 1].endswith("\\"))
    lines[begin : begin + len(step.expected)] = _trimmed(printed).splitlines()
    return "\n".join(lines) + "\n"
