"""Programs in the kernel language drawn from a seed: control flow, scopes, pointers and copies.

Most are valid; some have labels and declarations where the translator must refuse them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

PARAMETERS = "__global ulong *y, __global int *z, int w, uint u"
STRUCTURES = """
typedef struct { int a; int k[3]; ulong t; } P;
typedef struct { P p[2]; uint c; } Q;
__constant int TABLE[5] = {3, 1, 4, 1, 5};
"""
_SCALARS = ("int", "uint", "long", "ulong", "uchar", "short")
#: Few, so that inner names often hide outer ones.
_NAMES = "abcdist"
_DEPTH_MAX = 4
_STATEMENTS_MAX = 60


@dataclass
class _Scope:
    """The names declared in a block: name → type, as `int`, `int[4]`, `P`, `int*private`."""

    names: dict[str, str] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)  #: counters and constants: not assigned


class Program:
    """One kernel with its functions."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._scopes: list[_Scope] = []
        self._loops = 0
        self._switches = 0
        self._left = _STATEMENTS_MAX
        self._gives = ""
        self._functions: list[tuple[str, str, list[str]]] = []
        #: The probability of a label or a declaration at a place where a switch jumps over it.
        self._odd = self._random.choice((0, 0, 0.15))
        self.name = f"f{seed}"
        self.text = "".join(self._function(n) for n in range(self._random.randrange(4)))
        self.text += f"__kernel void {self.name}({PARAMETERS}) {{\n"
        outer = {"y": "ulong*__global", "z": "int*__global", "w": "int", "u": "uint"}
        self.text += self._body(outer, "")

    def _function(self, number: int) -> str:
        name, takes = f"{self.name}g{number}", {"y": "ulong*__global", "w": "int"}
        for one in self._random.sample(_NAMES, self._random.randrange(1, 4)):
            kinds = (*_SCALARS, "P", "Q", "int*private", "ulong*private", "P*private")
            takes[one] = self._pick((*kinds, "ulong*__global", "int*__global"))
        gives = self._pick(("ulong", "int", "P", "Q", "void"))
        head = ", ".join(_declared(kind, one) for one, kind in takes.items())
        text = f"static {gives} {name}({head}) {{\n{self._body(takes, gives)}"
        self._functions.append((name, gives, list(takes.values())))
        return text

    def _body(self, outer: dict[str, str], gives: str) -> str:
        self._gives, self._left = gives, _STATEMENTS_MAX
        self._scopes = [_Scope(dict(outer)), _Scope({"fuel": "int"}, {"fuel"})]
        count = self._random.randrange(3, 9)
        lines = "".join(self._statement(0) for _ in range(count))
        return f"int fuel = 30;\n{lines}}}\n"

    def _pick(self, among: Sequence[str]) -> str:
        return self._random.choice(among)

    def _chance(self, of: float) -> bool:
        return self._random.random() < of

    def _visible(self, fits: Callable[[str], bool], *, assigned: bool = False) -> list[str]:
        found: dict[str, bool] = {}
        for scope in self._scopes:
            for name, kind in scope.names.items():
                found[name] = fits(kind) and not (assigned and name in scope.fixed)
        return [name for name, good in found.items() if good]

    def _type(self, name: str) -> str:
        return next(scope.names[name] for scope in reversed(self._scopes) if name in scope.names)

    # Expressions.

    def _number(self, depth: int = 0) -> str:
        leaf = depth > 2 or self._chance(0.35)
        if leaf:
            choices = [self._literal, self._scalar, self._scalar]
        else:
            choices = [self._place, self._operation, self._operation, self._change, self._call]
        return self._random.choice(choices)(depth + 1)

    def _literal(self, depth: int) -> str:
        del depth
        return self._pick(("0", "1", "2", "3", "4", "7", "100", "0xffffffffu", "(1ul << 63)"))

    def _scalar(self, depth: int) -> str:
        del depth
        names = self._visible(_is_scalar)
        return self._pick(names) if names else "w"

    def _index(self, depth: int) -> str:
        counters = self._visible(lambda kind: kind == "int")
        near = f"({self._number(depth + 1)}) & 3"
        return self._pick(("0", "1", "2", "3", near, self._number(depth + 1), *counters[-2:]))

    def _place(self, depth: int, *, assigned: bool = False) -> str:
        """A scalar lvalue, or a constant element unless `assigned`."""
        name = self._pick(self._visible(lambda kind: True, assigned=assigned) or ["y"])
        kind = self._type(name)
        if not assigned and self._chance(0.05):
            return f"TABLE[{self._index(depth)}]"
        if "*" in kind:
            element = kind.split("*")[0]
            if self._chance(0.2):
                text = f"(*{name})"
            elif element == "P" and self._chance(0.4):
                return f"{name}->{self._member('P', depth)}"
            else:
                text = f"{name}[{self._index(depth)}]"
            return text if element not in "PQ" else f"{text}.{self._member(element, depth)}"
        if "[" in kind:
            text = f"{name}[{self._index(depth)}]"
            return text if kind[0] != "P" else f"{text}.{self._member('P', depth)}"
        return f"{name}.{self._member(kind, depth)}" if kind in "PQ" else name

    def _member(self, kind: str, depth: int) -> str:
        inner = self._pick(("a", "t", f"k[{self._index(depth)}]"))
        return inner if kind == "P" else self._pick(("c", f"p[{self._index(depth)}].{inner}"))

    def _operation(self, depth: int) -> str:
        left, right = self._number(depth), self._number(depth)
        match self._random.randrange(8):
            case 0:
                return f"({left} ? {right} : {self._number(depth)})"
            case 1:
                return f"({left}, {right})"
            case 2:
                return f"({self._pick('-~!')}{left})"
            case 3:
                return f"(({self._pick(_SCALARS)}){left})"
            case 4:
                return f"({left} {self._pick(('<<', '>>'))} ({right} & 7))"
        signs = ("+", "-", "*", "&", "|", "^", "<", ">=", "==", "!=", "&&", "||")
        return f"({left} {self._pick(signs)} {right})"

    def _change(self, depth: int) -> str:
        place = self._place(depth, assigned=True)
        match self._random.randrange(4):
            case 0:
                return f"{place}{self._pick(('++', '--'))}"
            case 1:
                return f"({self._pick(('++', '--'))}{place})"
        return f"({place} {self._pick(('=', '=', '+=', '-=', '^=', '*='))} {self._number(depth)})"

    def _call(self, depth: int) -> str:
        numbers = [one for one in self._functions if one[1] in _SCALARS]
        if not numbers:
            return self._scalar(depth)
        return self._called(self._random.choice(numbers), depth)

    def _called(self, function: tuple[str, str, list[str]], depth: int) -> str:
        given = [self._value(kind, depth + 1) for kind in function[2]]
        if "" in given:
            return self._scalar(depth)
        return f"{function[0]}({', '.join(given)})"

    def _value(self, kind: str, depth: int) -> str:
        """A value of a type; "" when nothing here has it."""
        if "*" in kind:
            return self._pointer(kind, depth)
        return self._structure(kind, depth) if kind in "PQ" else self._number(depth)

    def _structure(self, kind: str, depth: int) -> str:
        names = self._visible(lambda one: one == kind)
        made = [one for one in self._functions if one[1] == kind]
        if made and self._chance(0.3) and depth < 3:
            function = self._random.choice(made)
            text = self._called(function, depth)
            if text.startswith(function[0]):
                return text
        if not names:
            return ""
        if self._chance(0.3) and depth < 4:
            one, other = self._structure(kind, depth + 1), self._pick(names)
            return f"({self._number(depth)} ? {one} : {other})"
        return self._pick(names)

    def _pointer(self, kind: str, depth: int) -> str:
        element, space = kind.split("*")
        given = self._visible(lambda one: one == kind)
        if space == "private":
            given += self._visible(lambda one: one.split("[")[0] == element and "[" in one)
            single = self._visible(lambda one: one == element, assigned=True)
            given += [f"&{name}" for name in single]
        if not given:
            return ""
        text = self._pick(given)
        return f"{text} + {self._number(depth + 1)}" if self._chance(0.3) else text

    # Statements.

    def _statement(self, depth: int) -> str:
        self._left -= 1
        simple = [self._declaration, self._declaration, self._expression, self._expression]
        simple += [self._assigned_pointer, self._leave]
        nested = [self._if, self._while, self._do, self._for, self._counted, self._switch]
        nested += [self._block, self._switch, self._counted]
        deep = depth >= _DEPTH_MAX or self._left < 0 or self._chance(0.5)
        text = self._random.choice(simple if deep else nested)(depth)
        return text if text.endswith("\n") else text + "\n"

    def _inner(self, depth: int, *, odd: bool = True) -> str:
        """A block, with its own scope; in a switch it may have a label that does not belong."""
        self._scopes.append(_Scope())
        lines = []
        for _ in range(self._random.randrange(1, 5)):
            if odd and self._switches and self._chance(self._odd):
                lines.append(f"case {self._random.randrange(10, 99)}:\n")
            lines.append(self._statement(depth + 1))
        self._scopes.pop()
        return f"{{\n{''.join(lines)}}}\n"

    def _block(self, depth: int) -> str:
        return self._inner(depth)

    def _if(self, depth: int) -> str:
        text = f"if ({self._number()}) {self._inner(depth)}"
        return text + f"else {self._inner(depth)}" if self._chance(0.5) else text

    def _loop(self, depth: int) -> str:
        self._loops += 1
        switches, self._switches = self._switches, self._switches if self._odd else 0
        text = self._inner(depth)
        self._loops, self._switches = self._loops - 1, switches
        return text

    def _while(self, depth: int) -> str:
        return f"while (fuel-- > 0 && {self._number()}) {self._loop(depth)}"

    def _do(self, depth: int) -> str:
        return f"do {self._loop(depth)[:-1]} while (fuel-- > 0 && {self._number()});\n"

    def _for(self, depth: int) -> str:
        self._scopes.append(_Scope())
        first = self._declaration(depth).strip() if self._chance(0.7) else ";"
        after = f"{self._change(1)}, {self._number(2)}"
        text = f"for ({first} fuel-- > 0 && {self._number()}; {after}) {self._loop(depth)}"
        self._scopes.pop()
        return text

    def _counted(self, depth: int) -> str:
        name, limit = self._pick("is"), self._random.randrange(1, 6)
        first, kind = self._random.randrange(limit), self._pick(("int", "uint"))
        step = self._pick((f"{name}++", f"++{name}"))
        fixed = {name} if self._chance(0.8) else set()
        self._scopes.append(_Scope({name: kind}, fixed))
        head = f"for ({kind} {name} = {first}; {name} < {limit}; {step})"
        text = f"{head} {self._loop(depth)}"
        if not fixed:  # a body that changes its counter may not end
            text = text.replace(f"{name} < {limit};", f"fuel-- > 0 && {name} < {limit};", 1)
        self._scopes.pop()
        return text

    def _switch(self, depth: int) -> str:
        self._switches += 1
        self._scopes.append(_Scope())
        labels = [f"case {n}" for n in self._random.sample(range(8), self._random.randrange(4))]
        labels.insert(self._random.randrange(len(labels) + 1), "default")
        lines = []
        for label in labels:
            lines.append(f"{label}:\n")
            if self._chance(self._odd):
                lines.append(f";\n{self._declaration(depth)}\n")
            for _ in range(self._random.randrange(3)):
                nested = (self._block, self._counted, self._if, self._expression)
                lines.append(self._random.choice(nested)(depth + 1) + "\n")
            if self._chance(0.5):
                lines.append("break;\n")
        self._scopes.pop()
        self._switches -= 1
        return f"switch (({self._number()}) & 7) {{\n{''.join(lines)};\n}}\n"

    def _leave(self, depth: int) -> str:
        if depth == 0 or self._chance(0.4):
            return self._expression(depth)
        if self._loops and self._chance(0.7):
            return self._pick(("break;", "continue;"))
        if not self._gives or self._gives == "void":
            return "return;"
        value = self._value(self._gives, 1)
        return f"return {value};" if value else ";"

    def _expression(self, depth: int) -> str:
        del depth
        if self._chance(0.15):
            kind = self._pick("PQ")
            names, value = self._visible(lambda one: one == kind), self._structure(kind, 0)
            if names and value:
                return f"{self._pick(names)} = {value};"
        return f"{self._change(0)};" if self._chance(0.8) else f"{self._number()};"

    def _assigned_pointer(self, depth: int) -> str:
        names = self._visible(lambda kind: "*" in kind)
        name = self._pick(names or ["y"])
        value = self._pointer(self._type(name), depth)
        step = f"{name}{self._pick(('++', '--'))};"
        return f"{name} = {value};" if value and self._chance(0.7) else step

    def _declaration(self, depth: int) -> str:
        del depth
        kinds = (*_SCALARS, "int[4]", "ulong[3]", "P[2]", "P", "Q", "int*private")
        kind = self._pick((*kinds, "ulong*private", "P*private", "ulong*__global", "int*__global"))
        names = [name for name in _NAMES if name not in self._scopes[-1].names]
        name = self._pick(names) if names else ""
        value = self._initial(kind)
        if not name or (not value and "*" in kind):
            return ";"
        self._scopes[-1].names[name] = kind
        return f"{_declared(kind, name)}{' = ' * bool(value)}{value};"

    def _initial(self, kind: str) -> str:
        if "*" not in kind and self._chance(0.4):
            return ""
        if kind in ("int[4]", "ulong[3]"):
            return f"{{{', '.join(self._number(1) for _ in range(self._random.randrange(4)))}}}"
        if kind == "P[2]":
            return f"{{{{{self._number(1)}, {{{self._number(1)}}}}}}}"
        if kind == "P" and self._chance(0.5):
            return f"{{{self._number(1)}, {{1, {self._number(1)}}}, 2}}"
        return self._value(kind, 1)


def _is_scalar(kind: str) -> bool:
    return kind in _SCALARS


def _declared(kind: str, name: str) -> str:
    if "*" in kind:
        element, space = kind.split("*")
        return f"{space.replace('private', '')} {element} *{name}".strip()
    return f"{kind.split('[')[0]} {name}{'[' + kind.split('[')[1] if '[' in kind else ''}"
