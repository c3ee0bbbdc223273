"""One animated SVG of many pictures of a terminal, small because a line that stays is stored once.

The pictures are those that Textual exports. Each different content of a line is one group, with the
times at which it is visible; a viewer that does not animate shows the first picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape

#: The height of a line in Textual's pictures.
LINE_PX = 24.4

_SIZE = re.compile(r'viewBox="(0 0 [0-9.]+ [0-9.]+)"')
_PREFIX = re.compile(r"terminal-\d+-")
_CLASS = re.compile(r"\.(r\d+) \{ ([^}]*) \}")
_CLASS_USED = re.compile(r'class="(r\d+)"')
_FRAME = re.compile(
    r"</defs>(.*?)<g transform=\"(translate\([^\"]*\))\"[^>]*clip-terminal[^>]*>", re.DOTALL
)
_ELEMENT = re.compile(r"<rect [^>]*/>|<text [^>]*>.*?</text>", re.DOTALL)
_LINE_CLIP = re.compile(r' clip-path="url\(#line-(\d+)\)"')
_BLANK = re.compile(r">\s*</text>")
_TOP = re.compile(r' y="([0-9.]+)"')
_FONT = "font-family: Fira Code, DejaVu Sans Mono, monospace; font-size: 20px"


def animated(pictures: Sequence[str], frame_s: float, label: str) -> str:
    """The pictures in turn, each for `frame_s`, without an end."""
    plain = [_PREFIX.sub("", picture) for picture in pictures]
    size, frame = _SIZE.search(plain[0]), _FRAME.search(plain[0])
    assert size is not None, "Textual writes it"
    assert frame is not None, "Textual writes it"
    classes: dict[str, str] = {}
    contents = [_lines(picture, classes) for picture in plain]
    rules = [f".{name} {{ {style} }}" for style, name in classes.items()]
    title = ".title { font: bold 18px arial }"
    groups = _groups(contents, frame_s)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size[1]}" role="img" '
        f'aria-label="{escape(label)}">'
    )
    return "\n".join(
        (
            head,
            f"<style>text {{ {_FONT} }} {title} {' '.join(rules)}</style>",
            " ".join(frame[1].split()),
            f'<g transform="{frame[2]}" xml:space="preserve">',
            *groups,
            "</g>",
            "</svg>\n",
        )
    )


def _lines(picture: str, classes: dict[str, str]) -> dict[int, str]:
    """Number of each line → its elements, with the classes of the whole animation."""
    styles = dict(_CLASS.findall(picture))
    frame = _FRAME.search(picture)
    assert frame is not None, "Textual writes it"
    found: dict[int, str] = {}
    for element in _ELEMENT.findall(picture, frame.end()):
        if _BLANK.search(element) is not None:
            continue
        clip, top = _LINE_CLIP.search(element), _TOP.search(element)
        assert top is not None, "each element has a place"
        line = int(clip[1]) if clip is not None else round(float(top[1]) / LINE_PX)
        named = _CLASS_USED.sub(
            lambda used: f'class="{_named(styles[used[1]], classes)}"', _LINE_CLIP.sub("", element)
        )
        found[line] = found.get(line, "") + named
    return found


def _named(style: str, classes: dict[str, str]) -> str:
    return classes.setdefault(style, f"s{len(classes)}")


def _groups(contents: Sequence[Mapping[int, str]], frame_s: float) -> Iterator[str]:
    """One group for each content of each line."""
    for line in sorted({line for content in contents for line in content}):
        seen: dict[str, list[int]] = {}
        for number, content in enumerate(contents):
            if line in content:
                seen.setdefault(content[line], []).append(number)
        for text, numbers in seen.items():
            yield _group(text, numbers, len(contents), frame_s)


def _group(text: str, numbers: Sequence[int], count: int, frame_s: float) -> str:
    """The content of a line that is visible in the pictures of these numbers."""
    if len(numbers) == count:
        return f"<g>{text}</g>"
    shown = set(numbers)
    states = [number in shown for number in range(count)]
    turns = [n for n in range(count) if n == 0 or states[n] != states[n - 1]]
    values = ";".join("visible" if states[n] else "hidden" for n in turns)
    times = ";".join(f"{n / count:.5g}" for n in turns)
    first = "visible" if states[0] else "hidden"
    animation = (
        f'<animate attributeName="visibility" dur="{count * frame_s:g}s" calcMode="discrete" '
        f'repeatCount="indefinite" values="{values}" keyTimes="{times}"/>'
    )
    return f'<g visibility="{first}">{animation}{text}</g>'
