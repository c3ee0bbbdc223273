"""Pictures of terminal sessions."""

from __future__ import annotations

from xml.etree import ElementTree

from tools.terminal_picture import COLOURS, COLUMNS, Screen


def shown(text: str) -> list[str]:
    screen = Screen()
    screen.write(text)
    return ["".join(character for character, _ in line) for line in screen.lines]


def test_a_line_can_be_rewritten() -> None:
    assert shown("\r[## ] 1/2\x1b[K\r[####] 2/2 done\x1b[K\r\x1b[Kend\r\n") == ["end", ""]
    assert shown("x" * COLUMNS + "y") == ["x" * COLUMNS, "y"]


def test_a_picture_has_the_text_and_its_colours() -> None:
    screen = Screen()
    screen.write("a <b> \x1b[32mgood\x1b[0m & so on\r\n\r\nlast\r\n")
    picture = ElementTree.fromstring(screen.svg())
    rows = ["".join(row.itertext()) for row in picture if row.tag.endswith("text")]
    assert rows == ["a <b> good & so on", "last"]
    (good,) = [span for span in picture.iter() if span.text == "good"]
    assert good.get("fill") == COLOURS["32"]
