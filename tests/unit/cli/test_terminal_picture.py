"""Pictures of terminal sessions."""

from __future__ import annotations

from xml.etree import ElementTree

from tools.terminal_picture import drawn


def test_a_picture_has_the_last_state_of_each_line_and_its_colour() -> None:
    session = "\r[## ] 1/2\x1b[K\r[####] 2/2\x1b[K\r\x1b[Kend\r\na \x1b[32mgood\x1b[0m & <b>\r\n"
    picture = ElementTree.fromstring(drawn(session))
    texts = [text for text in picture.iter() if text.tag.endswith("text") and text.text]
    words = " ".join((text.text or "").strip() for text in texts).split()
    assert words == ["end", "a", "good", "&", "<b>"]
    (good,) = [text for text in texts if text.text == "good"]
    assert good.get("class") != texts[0].get("class")
