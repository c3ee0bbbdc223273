"""The page of one job: state, reason, Gantt, moments, outputs or failure, last log lines."""

from __future__ import annotations

from collections.abc import Iterator

from corekit.cli.chart import Glyphs
from corekit.cli.gantt import gantt_lines
from corekit.cli.screen import Coloured, Line
from corekit.cli.text import cut, folded_to, printable, visible
from corekit.cli.times import shown_time
from corekit.units import format_bytes
from orchgpu.cli.jobs.report import gantt_rows
from orchgpu.cli.top.snapshot import Story
from orchgpu.jobs.known import Known, intervals_of, latencies, moments, wait_text

#: The last lines of the log that are shown.
LOG_LINES = 20


def story_lines(story: Story, width: int, now_s: float, glyphs: Glyphs) -> list[Line]:
    """The page, as wide as the screen."""
    known = story.known
    lines: list[Line] = [*_head(known, width, now_s), ()]
    lines += [
        (line,) for line in gantt_lines(gantt_rows(intervals_of(known), now_s), width, glyphs)
    ]
    found = moments(known)
    measured = [f"{n} {s:.3f} s" for n, s in latencies(found).items() if s is not None]
    lines += [("  ".join(measured),)] if measured else []
    lines.append(())
    times = [shown_time(moment.at_s) for moment in found]
    wide = max((len(time) for time in times), default=0)
    for time, moment in zip(times, found, strict=True):
        text = f"{time:>{wide}}  {moment.where:<12}  {printable(moment.what)}"
        lines.append((cut(text, width, "both"),))
    lines += [*_end(known, width)]
    if story.lines:
        lines += [(), ("last lines of the log",)]
        for line in story.lines[-LOG_LINES:]:
            text = f"{shown_time(line.at_s)}  {visible(line.text)}"
            lines += [(part,) for part in folded_to(text, width, 4).splitlines()]
    return lines


def _head(known: Known, width: int, now_s: float) -> Iterator[Line]:
    name = printable(known.function_name)
    yield (f"{known.job}  {name}  ", Coloured(known.state), f"  attempt {known.attempt}")
    for line in folded_to(visible(wait_text(known, now_s)), width).splitlines():
        yield (line,)
    result = known.standing
    if result is not None and result.reason != "NONE":
        text = f"{result.reason}: {printable(result.detail)}"
        for line in folded_to(text, width).splitlines():
            yield (line,)
    if known.scheduled is not None and known.scheduled.ends_in_s is not None:
        yield (f"its lease ends in {known.scheduled.ends_in_s:.0f} s at the latest",)


def _end(known: Known, width: int) -> Iterator[Line]:
    result = known.standing
    if result is None:
        return
    if result.files:
        yield ()
    for file in result.files:
        name = f"s3://{file['bucket']}/{printable(str(file['key']))}"
        yield (f"{cut(name, max(8, width - 12), 'both')}  {format_bytes(int(file['size']))}",)
