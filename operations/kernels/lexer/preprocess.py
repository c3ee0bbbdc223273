"""The preprocessor: expands macros and conditions of a kernel source. Pure.

Compilers get expanded tokens only: a macro that the compiler expands could hide a word from the
checks. The subset has no `#` and `##` in macros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from operations.kernels.lexer.constants import Evaluator
from operations.kernels.lexer.tokens import Sort, Token, tokens_of, wrong
from operations.kernels.lexer.words import check_directive
from remote_gpu.wire.errors import OpCode, OpFailed

#: Each level of macros can double the length of a source.
EXPANDED_TOKENS_MAX = 1 << 17
#: Of nested macro arguments, and of nested conditions.
_DEPTH_MAX = 48
#: As defined by compilers, equal for all devices, so that a source means the same everywhere.
_PREDEFINED = {
    "__OPENCL_VERSION__": "120",
    "__OPENCL_C_VERSION__": "120",
    "CL_VERSION_1_0": "100",
    "CL_VERSION_1_1": "110",
    "CL_VERSION_1_2": "120",
    "cl_khr_fp64": "1",
}


@dataclass(frozen=True, slots=True)
class _Macro:
    parameters: tuple[str, ...] | None  #: None: not a function-like macro
    body: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class _Painted:
    """A token with the macros that are not expanded in it again."""

    token: Token
    hidden: frozenset[str] = frozenset()


class Preprocessor:
    """The expansion of one source."""

    def __init__(self) -> None:
        self._macros = {
            name: _Macro(None, (Token(Sort.NUMBER, value, 0),))
            for name, value in _PREDEFINED.items()
        }
        self._made = 0
        #: Per open condition: current part taken, any part taken, #else seen.
        self._conditions: list[list[bool]] = []

    def expand(self, tokens: Sequence[Token]) -> list[Token]:
        """The expanded tokens and `#pragma` lines. Raises OpFailed: EINVAL, E2BIG."""
        expanded: list[Token] = []
        pending: list[Token] = []
        for token in tokens:
            if token.sort is Sort.DIRECTIVE:
                expanded += self._expand([_Painted(item) for item in pending])
                pending = []
                if self._direct(token) and self._taken():
                    expanded.append(token)
            elif token.sort is not Sort.GAP and self._taken():
                pending.append(token)
        if self._conditions:
            raise wrong(tokens[-1].line, "#if without #endif")
        return expanded + self._expand([_Painted(item) for item in pending])

    def _taken(self) -> bool:
        return all(part for part, _, _ in self._conditions)

    def _direct(self, token: Token) -> bool:
        line, spliced = token.line, token.text[1:].replace("\\\n", "")
        raw = tokens_of(spliced, line)
        words = [replace(item, line=line) for item in raw if item.sort is not Sort.GAP]
        check_directive(words, line)
        word, rest = words[0].text, words[1:]
        if word in ("if", "ifdef", "ifndef", "elif", "else", "endif"):
            self._condition(word, rest, line)
        elif not self._taken():
            return False
        elif word == "define":
            self._define(raw, rest, line)
        elif word == "undef":
            self._macros.pop(rest[0].text if rest else "", None)
        elif word == "error":
            raise wrong(line, f"#error {' '.join(item.text for item in rest)}"[:200])
        return word == "pragma"

    def _condition(self, word: str, rest: Sequence[Token], line: int) -> None:
        if word in ("if", "ifdef", "ifndef"):
            if len(self._conditions) >= _DEPTH_MAX:
                raise wrong(line, f"conditions are nested more than {_DEPTH_MAX} levels deep")
            part = self._taken() and self._holds(word, rest, line)
            self._conditions.append([part, part, False])
            return
        if not self._conditions:
            raise wrong(line, f"#{word} without #if")
        condition = self._conditions[-1]
        if word == "endif":
            self._conditions.pop()
            return
        if condition[2]:
            raise wrong(line, f"#{word} after #else")
        condition[0], condition[2] = False, word == "else"
        if not condition[1] and self._taken_around():
            condition[0] = word == "else" or self._holds("if", rest, line)
        condition[1] = condition[1] or condition[0]

    def _taken_around(self) -> bool:
        return all(part for part, _, _ in self._conditions[:-1])

    def _holds(self, word: str, rest: Sequence[Token], line: int) -> bool:
        if word != "if":
            if len(rest) != 1 or rest[0].sort is not Sort.WORD:
                raise wrong(line, f"#{word} takes one name")
            return (rest[0].text in self._macros) == (word == "ifdef")
        known: list[_Painted] = []
        left = list(reversed(rest))
        while left:
            token = left.pop()
            if token.text == "defined":
                names = [
                    left.pop() for _ in range(3 if left and left[-1].text == "(" else 1) if left
                ]
                name = next((item for item in names if item.sort is Sort.WORD), None)
                if name is None:
                    raise wrong(line, "defined takes one name")
                value = "1" if name.text in self._macros else "0"
                known.append(_Painted(Token(Sort.NUMBER, value, line)))
            else:
                known.append(_Painted(token))
        return bool(Evaluator(self._expand(known), line, lambda _: 0).value())

    def _define(self, raw: Sequence[Token], rest: list[Token], line: int) -> None:
        if not rest or rest[0].sort is not Sort.WORD:
            raise wrong(line, "#define is followed by a name")
        name, body = rest[0].text, rest[1:]
        parameters: tuple[str, ...] | None = None
        at = next(i for i, item in enumerate(raw) if item.text == name)
        if at + 1 < len(raw) and raw[at + 1].text == "(":
            end = next((i for i, item in enumerate(body) if item.text == ")"), None)
            if end is None:
                raise wrong(line, "the parameters of a macro have no closing parenthesis")
            inner = body[1:end]
            parameters = tuple(item.text for item in inner[::2])
            commas = all(item.text == "," for item in inner[1::2])
            words = all(item.sort is Sort.WORD for item in inner[::2])
            if not commas or not words or (inner and len(inner) % 2 == 0):
                raise wrong(line, "the parameters of a macro must be names separated by commas")
            body = body[end + 1 :]
        if any(item.sort is Sort.DIRECTIVE for item in body):
            raise wrong(line, "# and ## in a macro are not in the subset")
        self._macros[name] = _Macro(parameters, tuple(body))

    def _expand(self, tokens: Sequence[_Painted], depth: int = 0) -> list[Token]:
        return [item.token for item in self._expanded(tokens, depth)]

    def _expanded(self, tokens: Sequence[_Painted], depth: int) -> list[_Painted]:
        if depth > _DEPTH_MAX and tokens:
            line = tokens[0].token.line
            raise wrong(line, f"macro arguments are nested more than {_DEPTH_MAX} levels deep")
        done: list[_Painted] = []
        left = list(reversed(tokens))
        while left:
            item = left.pop()
            name = item.token.text
            macro = self._macros.get(name) if item.token.sort is Sort.WORD else None
            if macro is None or name in item.hidden:
                done.append(item)
                continue
            if macro.parameters is None:
                made = self._made_of(macro.body, {}, item, item.hidden | {name})
            elif left and left[-1].token.text == "(":
                given, end = self._arguments(left, macro.parameters, item.token, depth)
                made = self._made_of(macro.body, given, item, item.hidden & end.hidden | {name})
            else:
                done.append(item)
                continue
            left += reversed(made)
        return done

    def _made_of(
        self,
        body: Sequence[Token],
        given: dict[str, list[_Painted]],
        use: _Painted,
        hidden: frozenset[str],
    ) -> list[_Painted]:
        made: list[_Painted] = []
        for token in body:
            parts = given.get(token.text) if token.sort is Sort.WORD else None
            for part in [_Painted(token)] if parts is None else parts:
                placed = replace(part.token, line=use.token.line)
                made.append(_Painted(placed, part.hidden | hidden))
            self._made += 1 if parts is None else len(parts)
            if self._made > EXPANDED_TOKENS_MAX:
                message = f"macros expand to more than {EXPANDED_TOKENS_MAX} tokens"
                raise OpFailed(OpCode.E2BIG, f"line {use.token.line}: {message}")
        return made

    def _arguments(
        self, left: list[_Painted], names: tuple[str, ...], use: Token, depth: int
    ) -> tuple[dict[str, list[_Painted]], _Painted]:
        """The next arguments in `left`, expanded, and the parenthesis after them."""
        left.pop()
        parts: list[list[_Painted]] = [[]]
        nested = 0
        while left:
            item = left.pop()
            text = item.token.text
            if text == ")" and not nested:
                if not names and parts == [[]]:
                    parts = []
                if len(parts) != len(names):
                    message = f"the macro {use.text!r} takes {len(names)} arguments"
                    raise wrong(use.line, f"{message}, not {len(parts)}")
                expanded = [self._expanded(part, depth + 1) for part in parts]
                return dict(zip(names, expanded, strict=True)), item
            nested += (text == "(") - (text == ")")
            if text == "," and not nested:
                parts.append([])
            else:
                parts[-1].append(item)
        raise wrong(
            use.line, f"the arguments of the macro {use.text!r} have no closing parenthesis"
        )
