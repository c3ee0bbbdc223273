"""Draws the images of the example text-recognition, with the text that they must be read as.

    .venv/bin/python tools/draw_example_images.py --fonts /usr/share/fonts/truetype/dejavu

The fonts are DejaVu (Bitstream Vera licence; Debian: fonts-dejavu-core). Only the drawn PNG files
are kept in this repository, no font.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

FOLDER = Path(__file__).resolve().parent.parent / "fdl/examples/text-recognition/input"
#: File → font, size in pixels, paper, ink, lines.
IMAGES = {
    "notice.png": (
        "DejaVuSans.ttf",
        26,
        (255, 255, 255),
        (0, 0, 0),
        (
            "A function has no GPU of its own.",
            "It borrows one for a single job,",
            "and gives it back when it is done.",
        ),
    ),
    "invoice.png": (
        "DejaVuSerif.ttf",
        28,
        (250, 246, 232),
        (32, 32, 64),
        ("Invoice 2024-0117", "Total: 1,284.50 EUR", "Due on 31 March"),
    ),
    "sign.png": (
        "DejaVuSans-Bold.ttf",
        44,
        (0, 96, 64),
        (255, 255, 255),
        ("PLATFORM 7", "Trains to Valencia"),
    ),
}


def draw(fonts: Path, name: str) -> Image.Image:
    """One image, as large as its text needs."""
    font_name, size, paper, ink, lines = IMAGES[name]
    font = ImageFont.truetype(fonts / font_name, size)
    width = max(round(font.getlength(line)) for line in lines) + 2 * size
    image = Image.new("RGB", (width, (2 * len(lines) + 1) * size), paper)
    pen = ImageDraw.Draw(image)
    for row, line in enumerate(lines):
        pen.text((size, (2 * row + 1) * size), line, font=font, fill=ink, anchor="lt")
    return image.quantize(32)  # a palette keeps the files small


def main() -> None:
    """Draw all of them into the example's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fonts", type=Path, required=True, help="folder of the DejaVu fonts")
    fonts = parser.parse_args().fonts
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in IMAGES:
        draw(fonts, name).save(FOLDER / name, optimize=True)


if __name__ == "__main__":
    main()
