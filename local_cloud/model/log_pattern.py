"""Filter patterns of CloudWatch Logs: words of a line, and the fields of a line that is JSON. Pure.

Source: CloudWatch Logs user guide, "Filter pattern syntax". Words: every one must be in the line
(`ERROR "took long" -retry`), or any of those marked with `?`; `%…%` is a regular expression. JSON:
`{ ($.code >= 500 && $.host = "web-*") || $.error IS NULL }`. A comparison with an absent
field is false. Patterns of space-delimited columns (`[a, b]`) are refused, not misread.
"""

from __future__ import annotations

import json
import operator
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

from local_cloud.model import wildcard
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.json_text import read_json

PATTERN_CHARS_MAX = 1024  #: as CloudWatch
_DEPTH_MAX = 32  #: of parentheses
Matches = Callable[[str], bool]
_Test = Callable[[object], bool]

_WORD = re.compile(r'\s*([-?]?)(?:"((?:[^"\\]|\\.)*)"|%([^%]*)%|([^\s"%]+))')
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<sign>\(|\)|&&|\|\||<=|>=|!=|=|<|>)
      | (?P<field>\$(?:\.[A-Za-z_][\w-]*|\[\d+\]|\.?\[(?:'[^']*'|"[^"]*")\])*)
      | "(?P<text>(?:[^"\\]|\\.)*)"
      | %(?P<pattern>[^%]*)%
      | (?P<word>[^\s()&|<>=!"]+)
    )""",
    re.VERBOSE,
)
_STEP = re.compile(r"""\.?\[(?:(\d+)|'([^']*)'|"([^"]*)")\]|\.([A-Za-z_][\w-]*)""")
_MISSING = object()


def compile_pattern(pattern: str) -> Matches:
    """The predicate of a pattern over lines. Raises InvalidParameterException for a bad pattern."""
    text = pattern.strip()
    if len(text) > PATTERN_CHARS_MAX:
        raise _invalid(f"it has more than {PATTERN_CHARS_MAX} characters")
    if text.startswith("{"):
        if not text.endswith("}"):
            raise _invalid("`}` is missing at its end")
        return _of_json(_Parser(text[1:-1]).whole())
    if text.startswith("["):
        raise _invalid("patterns of space-delimited columns are not part of the embedded cloud")
    return _of_words(text)


def _of_words(text: str) -> Matches:
    needed: list[Matches] = []
    unwanted: list[Matches] = []
    any_of: list[Matches] = []
    at = 0
    while at < len(text):
        match = _WORD.match(text, at)
        if match is None:
            raise _invalid(f"it cannot be read from {text[at:][:20]!r} on")
        mark, quoted, regex, word = match.groups()
        kind = {"-": unwanted, "?": any_of}.get(mark, needed)
        if regex is not None:
            kind.append(_matching(_regex(regex)))
        else:
            kind.append(_containing(word if quoted is None else _unescaped(quoted)))
        at = match.end()

    def matches(line: str) -> bool:
        if any(test(line) for test in unwanted) or not all(test(line) for test in needed):
            return False
        return not any_of or any(test(line) for test in any_of)

    return matches


def _of_json(test: _Test) -> Matches:
    def matches(line: str) -> bool:
        start = line.find("{")
        try:
            return test(read_json(line[start:])) if start >= 0 else False
        except ValueError:
            return False

    return matches


@dataclass(slots=True)
class _Parser:
    """Recursive descent over the inside of `{ … }`; && binds closer than ||."""

    text: str
    at: int = 0
    depth: int = 0

    def whole(self) -> _Test:
        test = self._any()
        if self.text[self.at :].strip():
            raise self._unexpected()
        return test

    def _any(self) -> _Test:
        tests = [self._all()]
        while self._take("||"):
            tests.append(self._all())
        return lambda value: any(test(value) for test in tests)

    def _all(self) -> _Test:
        tests = [self._one()]
        while self._take("&&"):
            tests.append(self._one())
        return lambda value: all(test(value) for test in tests)

    def _one(self) -> _Test:
        if not self._take("("):
            return self._condition()
        self.depth += 1
        if self.depth > _DEPTH_MAX:
            raise _invalid("its parentheses nest too deeply")
        test = self._any()
        if not self._take(")"):
            raise self._unexpected()
        self.depth -= 1
        return test

    def _condition(self) -> _Test:
        field = self._next("field")
        steps = tuple(_steps(field))
        sign = self._next("sign", "word")
        word = sign.upper()
        if word == "EXISTS":
            return lambda value: _at(value, steps) is not _MISSING
        if word == "NOT":
            self._word("EXISTS")
            return lambda value: _at(value, steps) is _MISSING
        if word == "IS":
            wanted = {"NULL": None, "TRUE": True, "FALSE": False}
            name = self._word(*wanted)
            return lambda value: _at(value, steps) is wanted[name]
        if sign not in _COMPARISONS:
            raise self._unexpected()
        test = self._comparison(sign)

        def compared(value: object) -> bool:
            found = _at(value, steps)
            return found is not _MISSING and test(found)

        return compared

    def _comparison(self, sign: str) -> _Test:
        match = self._match()
        kind = match.lastgroup if match is not None else None
        if match is None or kind not in ("text", "word", "pattern"):
            raise self._unexpected()
        self.at = match.end()
        if kind == "pattern":
            if sign not in ("=", "!="):
                raise _invalid("a regular expression is compared with = or != only")
            found = _regex(match["pattern"])
            return lambda value: (found.search(_shown(value)) is not None) == (sign == "=")
        number = _number(match["word"]) if kind == "word" else None
        if number is not None:
            compare = _COMPARISONS[sign]
            return lambda value: _is_number(value) and compare(value, number)
        if sign not in ("=", "!="):
            raise _invalid(f"{sign} compares with a number only")
        wanted = _unescaped(match["text"]) if kind == "text" else match["word"]
        return lambda value: wildcard.matches(_shown(value), wanted) == (sign == "=")

    # --- tokens

    def _match(self) -> re.Match[str] | None:
        return _TOKEN.match(self.text, self.at)

    def _take(self, sign: str) -> bool:
        match = self._match()
        if match is None or match["sign"] != sign:
            return False
        self.at = match.end()
        return True

    def _next(self, *kinds: str) -> str:
        match = self._match()
        if match is None or match.lastgroup not in kinds:
            raise self._unexpected()
        self.at = match.end()
        return match[match.lastgroup or ""]

    def _word(self, *words: str) -> str:
        word = self._next("word").upper()
        if word not in words:
            raise _invalid(f"{word!r:.40} is not {' or '.join(words)}")
        return word

    def _unexpected(self) -> CloudError:
        rest = self.text[self.at :].strip()
        return _invalid(f"it cannot be read from {rest[:20]!r} on" if rest else "it ends too early")


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


def _steps(field: str) -> Iterator[str | int]:
    for number, single, double, name in _STEP.findall(field):
        yield int(number) if number else single or double or name


def _at(value: object, steps: tuple[str | int, ...]) -> object:
    for step in steps:
        found = _MISSING
        if isinstance(value, list) and isinstance(step, int):
            found = value[step] if step < len(value) else _MISSING
        elif isinstance(value, dict):
            found = value.get(step, _MISSING)
        if found is _MISSING:
            return _MISSING
        value = found
    return value


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(text: str) -> float | None:
    if not re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text, re.ASCII):
        return None
    return float(text)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _matching(regex: re.Pattern[str]) -> Matches:
    return lambda line: regex.search(line) is not None


def _containing(wanted: str) -> Matches:
    return lambda line: wanted in line


def _regex(text: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # `[[` may be a set of sets one day
            return re.compile(text)
    except re.error as error:
        raise _invalid(f"%{text}% is not a regular expression: {error}") from None


def _invalid(reason: str) -> CloudError:
    return refused("InvalidParameterException", f"Invalid filter pattern: {reason}")
