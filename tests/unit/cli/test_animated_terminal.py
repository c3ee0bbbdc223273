"""Recordings of a terminal as one animated SVG."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from tools.animated_terminal import LINE_PX, animated

SVG = "{http://www.w3.org/2000/svg}"


def picture(number: int, *lines: str) -> str:
    """A picture as Textual exports it; each has a prefix of its own for ids and classes."""
    of = f"terminal-{number}"
    texts = "".join(
        f'<text class="{of}-r{1 + line % 2}" x="0" y="{20 + line * LINE_PX:.1f}" '
        f'clip-path="url(#{of}-line-{line})">{text}</text>'
        for line, text in enumerate(lines)
    )
    return (
        '<svg class="rich-terminal" viewBox="0 0 100 50.0" xmlns="http://www.w3.org/2000/svg">'
        f"<style>.{of}-r1 {{ fill: #c5c8c6 }} .{of}-r2 {{ fill: #98a84b }}</style><defs></defs>"
        f'<rect fill="#292929" x="1" y="1" width="98" height="48"/>'
        f'<g transform="translate(9, 41)" clip-path="url(#{of}-clip-terminal)">'
        '<rect fill="#000000" x="0" y="1.5" width="9"/>'
        f'<g class="{of}-matrix">{texts}</g></g></svg>'
    )


def visible(group: ElementTree.Element, share: float) -> bool:
    """Whether a group is shown at this share of the animation."""
    animation = group.find(f"{SVG}animate")
    if animation is None:
        return True
    times = [float(one) for one in (animation.get("keyTimes") or "").split(";")]
    values = (animation.get("values") or "").split(";")
    return [value for at, value in zip(times, values, strict=True) if at <= share][-1] == "visible"


def shown(svg: str, share: float) -> list[str]:
    """The lines at this share of the animation."""
    matrix = ElementTree.fromstring(svg).findall(f"{SVG}g")[-1]
    texts = [one for group in matrix if visible(group, share) for one in group.iter(f"{SVG}text")]
    return [text.text or "" for text in texts]


def test_each_moment_shows_its_picture() -> None:
    frames: Sequence[Sequence[str]] = [
        ("devices", "busy", "\n"),
        ("devices", "idle", "end"),
        ("devices", "busy", "end"),
        ("jobs",),
    ]
    svg = animated([picture(9 + n, *lines) for n, lines in enumerate(frames)], 0.5, "a <session>")
    for number, lines in enumerate(frames):
        expected = [line for line in lines if line.strip()]
        assert shown(svg, (number + 0.5) / len(frames)) == expected
    assert svg.count(">devices<") == svg.count(">busy<") == 1, "a line is stored once"
    first = list(ElementTree.fromstring(svg).findall(f"{SVG}g")[-1])
    still = [g for g in first if g.get("visibility", "visible") == "visible"]
    assert [one.text for g in still for one in g.iter(f"{SVG}text")] == ["devices", "busy"]


def test_a_colour_of_two_pictures_is_one_class() -> None:
    svg = animated([picture(1, "a", "b"), picture(2, "c", "d")], 1.0, "x")
    assert svg.count("fill: #98a84b") == 1
    assert "terminal-" not in svg.replace("clip-terminal", "")
