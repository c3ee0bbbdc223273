"""Makes a picture of a real session of `orchgpu top`: one frame per step, shown in turn.

    python -m tools.top_picture docs/pictures/top.svg 1 2 3,enter

Each step is a list of keys, separated by commas; a frame is taken some seconds after them. The
scheduler and the cloud are those of the environment, as for every command.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from corekit.cli.chart import BLOCKS
from orchgpu.cli.scheduler import scheduler_address
from orchgpu.cli.top.app import TopApp

COLUMNS, ROWS = 100, 25
#: The time that a frame is shown.
FRAME_S = 4
_FONT_FACES = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_SIZE = re.compile(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"')


async def frames(steps: Sequence[str], wait_s: float) -> list[str]:
    """The screen after each step."""
    app = TopApp(scheduler_address(None), BLOCKS)
    found = []
    async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
        for step in steps:
            await pilot.press(*step.split(","))
            await pilot.pause(wait_s)
            found.append(app.export_screenshot(simplify=True))
    return found


def animated(pictures: Sequence[str]) -> str:
    """One SVG that shows the frames in turn, without an end; a still viewer shows the first."""
    size = _SIZE.search(pictures[0])
    assert size is not None, "Textual writes a viewBox"
    whole_s, share = FRAME_S * len(pictures), 100 / len(pictures)
    end = share + 0.01
    turn = f"0%, {share:.2f}% {{ opacity: 1 }} {end:.2f}%, 100% {{ opacity: 0 }}"
    rules = [
        f"@keyframes turn {{ {turn} }}",
        f".frame {{ animation: turn {whole_s}s infinite; opacity: 0 }}",
        ".frame0 { opacity: 1 }",
        *(
            f".frame{n} {{ animation-delay: {FRAME_S * n - (whole_s if n else 0)}s }}"
            for n in range(len(pictures))
        ),
    ]
    layers = [
        f'<g class="frame frame{n}">{_FONT_FACES.sub("", picture)}</g>'
        for n, picture in enumerate(pictures)
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[1]} {size[2]}" '
        'role="img" aria-label="orchgpu top">'
    )
    return "\n".join((head, f"<style>{' '.join(rules)}</style>", *layers, "</svg>\n"))


def main() -> None:
    """Run the session and write the picture."""
    parser = argparse.ArgumentParser(prog="tools.top_picture", description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("steps", nargs="+")
    parser.add_argument("--wait", type=float, default=3.0, metavar="SECONDS")
    arguments = parser.parse_args()
    pictures = asyncio.run(frames(arguments.steps, arguments.wait))
    text = animated(pictures) if len(pictures) > 1 else _FONT_FACES.sub("", pictures[0])
    arguments.picture.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


if __name__ == "__main__":
    main()
