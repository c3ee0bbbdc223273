"""Report of an interval, from the history."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import click

from corekit.cli.progress import StatusLine
from corekit.cli.screen import echo, echo_json, echo_raw, json_option
from corekit.decode import encode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.units import parse_duration_s
from orchgpu.cli.options import history_file, store_option
from orchgpu.core.prices import Prices
from orchgpu.history.reader import HistoryReader, Window
from orchgpu.jobs.cloud import JobCloud
from orchgpu.report.page import page
from orchgpu.report.summary import Report, report_of

PAGE_NAME = "report.html"
#: Limit of a question to the cloud, without which the report has no cost of functions.
CLOUD_WITHIN_S = 3.0


@click.command("report")
@click.option(
    "--since",
    default="1d",
    show_default=True,
    metavar="DURATION",
    help="Begin of the interval, as in 90m or 7d before its end.",
)
@click.option(
    "--until",
    metavar="DURATION",
    help="End of the interval, this long ago. [default: now]",
)
@store_option
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path(PAGE_NAME),
    show_default=True,
    metavar="FILE",
    help="The page; `-` is standard output.",
)
@click.option(
    "--device-usd-per-hour",
    type=click.FloatRange(0),
    help="Price of a device. [default: 0.90, a p2.xlarge in 2021]",
)
@click.option(
    "--memory-mib",
    type=click.IntRange(128, 10240),
    help="Memory of functions that the cloud does not know. [default: their cost is left out]",
)
@json_option
def command(
    since: str,
    until: str | None,
    store: Path | None,
    output: Path,
    device_usd_per_hour: float | None,
    memory_mib: int | None,
    as_json: bool,
) -> None:
    """Write one page: throughput, waits, cold starts, utilisation, cost and failures.

    The page is one HTML file without scripts. It is made from the history, which `orchgpu collect`
    writes; --json prints the same figures instead.

    \b
    Example:  orchgpu report --since 1d
    """
    until_s = time.time() - (0.0 if until is None else parse_duration_s(until))
    length_s = parse_duration_s(since)
    if length_s <= 0:
        raise invalid(f"--since {since!r}: a report needs an interval, such as 1d")
    window = Window(since_s=until_s - length_s, until_s=until_s)
    standard = Prices()
    prices = standard
    if device_usd_per_hour is not None:
        prices = Prices(device_usd_per_hour=device_usd_per_hour, as_of="given")
    with HistoryReader(history_file(store)) as reader, closing(_Memories(memory_mib)) as memories:
        line = StatusLine(quiet=as_json)
        line.show(f"reading the last {since} of {history_file(store)}")
        report = report_of(reader, window, prices=prices, memory_of=memories.of)
        line.clear()
    if as_json:
        echo_json(report_json(report))
    elif str(output) == "-":
        echo_raw(page(report))
    else:
        _write(output, page(report))
        totals = report.totals
        echo(f"{output}: {totals.jobs} jobs that ended, {totals.devices} devices")


def report_json(report: Report) -> dict[str, object]:
    figures: dict[str, object] = encode(report)
    return figures


def _write(output: Path, text: str) -> None:
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise invalid(f"cannot write {output}: {error.strerror or error}") from None


class _Memories:
    """Memory of functions, as the cloud has it; one that does not answer is asked once."""

    def __init__(self, otherwise_mib: int | None) -> None:
        self._otherwise_mib = otherwise_mib
        self._known: dict[str, int | None] = {}
        self._cloud: JobCloud | None = None
        self._answers = True

    def of(self, function: str) -> int | None:
        """The memory in MiB; None: not known."""
        if function not in self._known:
            self._known[function] = self._ask(function) if self._answers else None
        found = self._known[function]
        return self._otherwise_mib if found is None else found

    def _ask(self, function: str) -> int | None:
        try:
            self._cloud = self._cloud or JobCloud(within_s=CLOUD_WITHIN_S)
            return self._cloud.services.function_settings(function).memory_mib
        except AppError as error:
            self._answers = error.code is ErrorCode.NOT_FOUND
            return None

    def close(self) -> None:
        if self._cloud is not None:
            self._cloud.close()
