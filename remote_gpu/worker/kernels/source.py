"""A kernel source of graphs, checked against the OpenCL C subset. Pure.

In the subset: scalars, pointers, arrays, structures, functions of one's own, the functions of
`words.BUILTINS`, `#define` and conditions. Not in it: vector types, images, `half`, `printf`,
includes, pointers to pointers, and every function that the source does not define, because on a CPU
its name would be looked up in the whole process. OpenCL and CUDA both compile what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.graphs import SCALARS, Argument, Scalar, Shared
from remote_gpu.worker.kernels.tokens import Sort, Token, tokens_of, wrong
from remote_gpu.worker.kernels.words import (
    ATTRIBUTES,
    BUILTINS,
    C_WORDS,
    KERNEL_WORDS,
    QUALIFIERS,
    SCALAR_WORDS,
    SPACES,
    check_directive,
    check_word,
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel."""

    name: str
    takes: str  #: "buffer", "shared", or the scalar that it is (`SCALARS`)
    pointee: str = ""  #: of memory shared by a group: the type with its qualifiers


@dataclass(frozen=True, slots=True)
class Signature:
    """One kernel as it is declared; places are indices of `Source.tokens`."""

    name: str
    parameters: tuple[Parameter, ...]
    start: int  #: its first token, `__kernel`
    opening: int  #: the parenthesis before its parameters
    body: int  #: the brace of its body


@dataclass(frozen=True, slots=True)
class Source:
    """A source of the subset."""

    text: str  #: for compilers: its lines end with LF
    tokens: tuple[Token, ...]  #: all of them
    kernels: Mapping[str, Signature]

    def check_call(self, kernel: str, arguments: Sequence[Argument]) -> Signature:
        """The kernel, if these arguments fit it. Raises OpFailed(EINVAL) saying which does not."""
        signature = self.kernels.get(kernel)
        if signature is None:
            known = ", ".join(self.kernels) or "none"
            raise _misfit(f"no kernel {kernel!r} in the source; it has {known}")
        wanted = signature.parameters
        if len(wanted) != len(arguments):
            message = f"kernel {kernel!r} takes {len(wanted)} arguments, not {len(arguments)}"
            raise _misfit(message)
        for index, (parameter, argument) in enumerate(zip(wanted, arguments, strict=True)):
            given = _sort_of(argument)
            if given != parameter.takes:
                raise _misfit(
                    f"argument {index} of kernel {kernel!r} is {given}; {parameter.name!r}"
                    f" takes {parameter.takes}"
                )
        return signature


def read_source(text: str) -> Source:
    """Check a source and find its kernels. Raises OpFailed(EINVAL) naming line and rule."""
    try:
        return _read(text)
    except OpFailed as error:
        raise OpFailed(error.code, f"the source does not build: {error.message}") from None


def _read(text: str) -> Source:
    text = text.replace("\r\n", "\n")
    tokens = tokens_of(text)
    names = _Names()
    for token in tokens:
        if token.sort is Sort.DIRECTIVE:
            names.add_directive(token)
    code = _Code(tokens)
    names.add_code(code)
    names.check(code)
    kernels: dict[str, Signature] = {}
    for signature in _kernels(code, names.types):
        if kernels.setdefault(signature.name, signature) is not signature:
            line = tokens[signature.start].line
            raise wrong(line, f"kernel {signature.name!r} is defined twice")
    return Source(text, tuple(tokens), kernels)


class _Code:
    """The tokens that a compiler sees, with their places and their parentheses matched."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        skipped = (Sort.GAP, Sort.DIRECTIVE)
        self.places = [at for at, token in enumerate(tokens) if token.sort not in skipped]
        self.tokens = [tokens[at] for at in self.places]
        self._closing: dict[int, int] = {}
        opened: list[int] = []
        for at, token in enumerate(self.tokens):
            if token.text == "(":
                opened.append(at)
            elif token.text == ")" and opened:
                self._closing[opened.pop()] = at
        if opened:
            raise wrong(self.tokens[opened[-1]].line, "a parenthesis has no end")

    def text(self, at: int) -> str:
        """Of one token; "" outside of the source."""
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    def behind(self, opening: int) -> int:
        """Behind the parenthesis that closes this one; the end without one."""
        return self._closing.get(opening, len(self.tokens)) + 1


class _Names:
    """What the source defines: functions, macros, names of types."""

    def __init__(self) -> None:
        self._macros: dict[str, _Macro] = {}
        self._functions: set[str] = set()
        self.types: dict[str, str] = dict(SCALAR_WORDS)

    def add_directive(self, token: Token) -> None:
        """A macro may hold expressions and types; not what a translation must find."""
        line, spliced = token.line, token.text[1:].replace("\\\n", "")
        raw = tokens_of(spliced, line)
        words = [one for one in raw if one.sort is not Sort.GAP]
        check_directive(words, line)
        if words[0].text != "define":
            return
        if len(words) < 2 or words[1].sort is not Sort.WORD:
            raise wrong(line, "#define is followed by a name")
        name, body, given = words[1], words[2:], set[str]()
        takes = next(after.text == "(" for one, after in _pairs(raw) if one is name)
        if takes:
            parameters = body[: _index_of(body, ")")]
            given = {one.text for one in parameters if one.sort is Sort.WORD}
            body = body[_index_of(body, ")") + 1 :]
        self._check_body(body, line)
        self._macros[name.text] = _Macro(line, takes, given, body)
        if not takes and (kind := self.types.get(" ".join(one.text for one in body))):
            self.types[name.text] = kind

    def _check_body(self, body: Sequence[Token], line: int) -> None:
        depth = 0
        for one in body:
            if one.sort is Sort.DIRECTIVE:
                raise wrong(line, "# and ## in a macro are not in the subset")
            if one.text in KERNEL_WORDS or one.text in SPACES or one.text == "__attribute__":
                raise wrong(line, f"{one.text} in a macro: write it out where it is used")
            depth += (one.text == "(") - (one.text == ")")
            if depth < 0:
                break
        if depth:
            raise wrong(line, "a macro holds a parenthesis without the other one")

    def add_code(self, code: _Code) -> None:
        """Functions are followed by parameters and a body; typedefs of scalars are resolved."""
        for at, token in enumerate(code.tokens):
            if token.text == "typedef":
                words = [one.text for one in code.tokens[at + 1 : at + 6]]
                end = words.index(";") - 1 if ";" in words else 0
                if end > 0 and (kind := self.types.get(" ".join(words[:end]))):
                    self.types[words[end]] = kind
            elif token.sort is Sort.WORD and code.text(at + 1) == "(":
                behind = code.text(code.behind(at + 1))
                self._functions |= {token.text} if behind == "{" else set()

    def check(self, code: _Code) -> None:
        """Every word, and every call. Raises OpFailed(EINVAL)."""
        for macro in self._macros.values():
            opens = self._openings(macro.body)
            for at, token in enumerate(macro.body):
                if opens[at + 1] and token.text in macro.parameters:
                    raise wrong(macro.line, f"{token.text!r} of a macro cannot be called")
                self._check(token.text, macro.line, called=opens[at + 1])
        opens = self._openings(code.tokens)
        for at, token in enumerate(code.tokens):
            if token.sort is not Sort.WORD:
                continue
            called = opens[at + 1]
            self._check(token.text, token.line, called=called)
            if token.text == "__attribute__":
                self._check_attribute(code.tokens[at + 1 : code.behind(at + 1)])
            elif called and token.text in self._macros:
                plain = code.text(at + 1) == "("
                self._check_expanded(token, opens[code.behind(at + 1)] if plain else True)

    def _openings(self, tokens: Sequence[Token]) -> list[bool]:
        """Of each place, and of two behind the last: may what stands there begin with `(` for a
        compiler, which expands macros?"""
        opens = [False] * (len(tokens) + 2)
        for at in range(len(tokens) - 1, -1, -1):
            macro = self._macros.get(tokens[at].text)
            if macro is None:
                opens[at] = tokens[at].text == "("
            elif not macro.body:
                opens[at] = opens[at + 1]
            else:
                first = macro.body[0].text
                opens[at] = first == "(" or first in macro.parameters or first in self._macros
        return opens

    def _check_attribute(self, inner: Sequence[Token]) -> None:
        for token in inner:
            if token.sort is Sort.WORD and token.text not in ATTRIBUTES:
                raise wrong(token.line, f"the attribute {token.text!r} is not in the subset")

    def _check(self, word: str, line: int, *, called: bool) -> None:
        check_word(word, line)
        own = word in self._macros or word in self._functions
        if own and word in BUILTINS:
            raise wrong(line, f"{word!r} is a function of OpenCL C; rename yours")
        named = own or word in BUILTINS or word in C_WORDS or word in SPACES
        if called and not named and word.isidentifier():
            raise wrong(line, f"{word!r} is neither defined here nor a function of the subset")

    def _check_expanded(self, use: Token, called_again: bool) -> None:
        """What a macro leaves behind must not become the name of a foreign function."""
        macro = self._macros[use.text]
        last = macro.body[-1].text if macro.body else ""
        is_function = last in self._functions or last in BUILTINS
        if called_again if macro.takes else not is_function:
            raise wrong(use.line, f"the macro {use.text!r} cannot be called; call the function")


@dataclass(frozen=True, slots=True)
class _Macro:
    line: int
    takes: bool  #: arguments
    parameters: Collection[str]
    body: Sequence[Token]


def _kernels(code: _Code, types: Mapping[str, str]) -> Iterator[Signature]:
    for at, token in enumerate(code.tokens):
        if token.text not in KERNEL_WORDS:
            continue
        name = at + 1
        while code.text(name) == "__attribute__":
            name = code.behind(name + 1)
        name, end = name + 1, code.behind(name + 2)
        if code.text(name - 1) != "void" or code.text(name + 1) != "(" or code.text(end) != "{":
            raise wrong(token.line, "a kernel is written as: __kernel void NAME(…) { … }")
        inner = code.tokens[name + 2 : end - 1]
        yield Signature(
            name=code.text(name),
            parameters=tuple(_parameters(code.text(name), inner, types)),
            start=code.places[at],
            opening=code.places[name + 1],
            body=code.places[end],
        )


def _parameters(
    kernel: str, inner: Sequence[Token], types: Mapping[str, str]
) -> Iterator[Parameter]:
    if [token.text for token in inner] in ([], ["void"]):
        return
    part: list[Token] = []
    for token in (*inner, Token(Sort.SIGN, ",", inner[-1].line)):
        if token.text == ",":
            yield _parameter(kernel, part, types, token.line)
            part = []
        else:
            part.append(token)


def _parameter(
    kernel: str, part: Sequence[Token], types: Mapping[str, str], line: int
) -> Parameter:
    words = [token.text for token in part]
    where = f"kernel {kernel!r}: parameter {' '.join(words)!r}"
    if not part or part[-1].sort is not Sort.WORD:
        raise wrong(line, f"{where} must end with its name")
    spaces = [SPACES[word] for word in words if word in SPACES]
    plain = [word for word in words[:-1] if word not in SPACES]
    if "*" not in plain:
        kind = types.get(" ".join(word for word in plain if word not in QUALIFIERS))
        if kind is None or spaces not in ([], ["private"]):
            raise wrong(line, f"{where} is neither a pointer nor one of {', '.join(SCALARS)}")
        return Parameter(words[-1], kind)
    if plain.count("*") > 1 or len(spaces) != 1 or spaces == ["private"]:
        raise wrong(line, f"{where}: a pointer is one of __global, __constant or __local")
    if spaces == ["local"]:
        return Parameter(words[-1], "shared", " ".join(plain[: plain.index("*")]))
    return Parameter(words[-1], "buffer")


def _pairs(tokens: Sequence[Token]) -> Iterator[tuple[Token, Token]]:
    """Each with the one behind it; a gap behind the last."""
    return zip(tokens, [*tokens[1:], Token(Sort.GAP, "", 0)], strict=True)


def _index_of(tokens: Sequence[Token], text: str) -> int:
    return next((at for at, token in enumerate(tokens) if token.text == text), len(tokens))


def _sort_of(argument: Argument) -> str:
    if isinstance(argument, Scalar):
        return argument.kind
    return "shared" if isinstance(argument, Shared) else "buffer"


def _misfit(message: str) -> OpFailed:
    return OpFailed(OpCode.EINVAL, message)
