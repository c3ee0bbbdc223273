"""Page of a report: one HTML file without scripts and without other files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files

from orchgpu.report.charts import LENGTHS_S, Line, axis_end, bars, curves, gantt
from orchgpu.report.summary import DEVICES_SHOWN, Report, UseCost

#: Styles of the console that the page shares with it: colours and sizes, and the Gantt.
SHARED = ("tokens.css", "gantt.css")
STYLE = """
:root { color-scheme: light dark; --inset: 0; --labels: minmax(90px, 210px);
  --one: var(--run); --two: var(--good); --three: var(--series-2); }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.45 var(--font); }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 24px; margin: 0 0 2px; } h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 0 0 12px; color: var(--text-muted); }
section, .tiles div { background: var(--surface); border: 1px solid var(--line);
  border-radius: var(--radius); padding: 16px 18px; margin-top: 16px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); gap: 12px;
  margin: 20px 0 0; padding: 0; }
.tiles div { padding: 10px 14px; margin: 0; }
.tiles dt { color: var(--text-muted); font-size: 13px; } .tiles dd { margin: 0; font-size: 22px; }
.tiles small { display: block; font-size: 12px; color: var(--text-muted); }
.chart { overflow-x: auto; }
svg, .gantt { width: 100%; min-width: 620px; }
svg { display: block; height: auto; }
svg text { font-size: 12px; fill: var(--text-muted); } svg .end { text-anchor: end; }
svg .middle { text-anchor: middle; } svg .grid { stroke: var(--line); }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.one { fill: var(--one); stroke: none; } .two { fill: var(--two); } .three { fill: var(--three); }
.bad { fill: var(--bad); }
.warm { fill: var(--one); --span: var(--one); }
.cold { fill: var(--three); --span: var(--three); }
.unknown { fill: var(--text-muted); --span: var(--text-muted); }
svg .line.one { stroke: var(--one); } svg .line.two { stroke: var(--two); }
svg .line.three { stroke: var(--three); }
.gantt-label { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.gantt-span { top: 4px; height: 22px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 0 0 8px; padding: 0;
  list-style: none; color: var(--text-muted); font-size: 13px; }
.legend svg { display: inline-block; width: 10px; min-width: 0; height: 10px; margin-right: 6px; }
.table { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 6px 10px 6px 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; } tr:last-child td { border-bottom: 0; }
th { color: var(--text-muted); font-weight: 500; font-size: 13px; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
@media print { section { break-inside: avoid; } }
"""


#: Columns of texts; all others have numbers.
TEXTS = ("Function", "Tenant", "Reason", "Workflow", "Step", "Pool")


def page(report: Report) -> str:
    """The HTML text of a report."""
    window = report.window
    span = f"{_date(window.since_s)} – {_date(window.until_s)} UTC"
    body = (
        f"<header><h1>orchgpu report</h1><p>{span}</p></header>",
        _tiles(report),
        *_charts(report),
        _hosts(report),
        _devices(report),
        _uses(report),
        _workflows(report),
        _failures(report),
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>orchgpu report, {span}</title><style>{_shared()}{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _shared() -> str:
    folder = files("orchgpu.web") / "assets" / "styles"
    return "\n".join((folder / name).read_text("utf-8") for name in SHARED)


def _tiles(report: Report) -> str:
    totals = report.totals
    starts = totals.cold_starts + totals.warm_starts
    cold = percent(totals.cold_starts / starts if starts else None)
    tiles = (
        ("Jobs that ended", f"{totals.jobs:,}", f"{totals.succeeded:,} succeeded"),
        ("Throughput", f"{totals.jobs_per_hour:,.4g}/h", f"RFast ≤ {totals.rfast_max:.3g}/s"),
        ("Wait, median", seconds(totals.wait_p50_s), f"95 %: {seconds(totals.wait_p95_s)}"),
        ("RLat, median", seconds(totals.rlat_p50_s), f"95 %: {seconds(totals.rlat_p95_s)}"),
        ("Cold starts", cold, f"{totals.cold_starts:,} of {starts:,}"),
        ("Utilisation", percent(totals.utilisation), f"{totals.devices:,} devices"),
        ("Cost, USD", dollars(totals.usd), f"prices: {report.prices.as_of}"),
    )
    cells = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"
        for name, value, more in tiles
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def _charts(report: Report) -> tuple[str, ...]:
    window, series = report.window, report.series
    at = (window, series.time_s, series.step_s)
    step = seconds(series.step_s)
    jobs = (
        Line(
            name="succeeded",
            css="one",
            values=tuple(rate * series.step_s for rate in series.rfast),
        ),
        Line(name="did not succeed", css="bad", values=series.failed),
    )
    latencies = (
        Line(name="RLat", css="one", values=series.rlat),
        Line(name="DLat", css="three", values=series.dlat),
        Line(name="ELat", css="two", values=series.elat),
    )
    starts = (
        Line(name="warm", css="warm", values=series.warm_starts),
        Line(name="cold", css="cold", values=series.cold_starts),
    )
    lent = (Line(name="utilisation", css="one", values=series.utilisation),)
    return (
        _section(
            "Throughput",
            f"Jobs that ended, for each {step}",
            _legend(jobs) + bars(*at, jobs, count, "jobs that ended over time"),
        ),
        _section(
            "Latencies",
            "Median of each step: upload to finished (RLat), to the session's begin (DLat); "
            "the session's begin to the release of its devices (ELat)",
            _legend(latencies) + curves(*at, latencies, seconds, "latencies over time", LENGTHS_S),
        ),
        _section(
            "Utilisation",
            "Lent part of the time of all present devices",
            curves(*at, lent, percent, "utilisation over time", (1.0,)),
        ),
        _section(
            "Starts",
            f"Leases whose workers loaded something (cold) or nothing (warm), for each {step}",
            _legend(starts) + bars(*at, starts, count, "cold and warm starts over time"),
        ),
    )


def _hosts(report: Report) -> str:
    """Hosts that come and go, and what they cost; nothing without a fleet."""
    found, series = report.hosts, report.series
    if found is None:
        return ""
    lines = (
        Line(name="hosts", css="one", values=found.hosts),
        Line(name="leases", css="two", values=found.leases),
        Line(name="waiting requests", css="three", values=found.waiting),
    )
    highest = max((*found.hosts, *found.leases, *found.waiting))
    at = (report.window, series.time_s, series.step_s)
    drawn = curves(*at, lines, count, "hosts, leases and requests over time", (axis_end(highest),))
    rows = [
        (one.pool, f"{one.hosts_max:,}", f"{one.host_s / 3600:,.4g}", dollars(one.usd))
        for one in found.pools
    ]
    table = _table(("Pool", "Hosts at most", "Host hours", "Hosts $"), rows)
    per_h = report.hosts_usd_per_device_h
    spent = f"{dollars(found.usd)} USD for hosts"
    spent += "" if per_h is None else f", {dollars(per_h)} for each hour of a device that jobs used"
    about = f"Pools of hosts that come and go, as means of each {seconds(series.step_s)}; {spent}"
    return _section("Hosts", about, _legend(lines) + drawn + table)


def _devices(report: Report) -> str:
    if not report.devices:
        return _section("Devices", "No device was there in this interval")
    legend = (
        Line(name="warm start", css="warm", values=()),
        Line(name="cold start", css="cold", values=()),
        Line(name="not known", css="unknown", values=()),
    )
    left_out = report.totals.devices - len(report.devices)
    more = f"; the {DEVICES_SHOWN} used most, {left_out:,} others left out" if left_out else ""
    chart = gantt(report.window, report.devices, "leases of each device over time")
    return _section("Devices", f"Leases of each device{more}", _legend(legend) + chart)


def _uses(report: Report) -> str:
    columns = (
        *("Function", "Tenant", "Jobs", "Succeeded", "Wait p50", "Wait p95", "Cold", "Warm"),
        *("Loading p50", "Device time", "Device $", "Function $", "Cost $"),
    )
    rows = [_use(one) for one in report.uses]
    prices = report.prices
    about = (
        f"Prices ({prices.as_of}): {prices.device_usd_per_hour:.2f} USD per device hour, divided "
        f"among those who share it; {prices.lambda_usd_per_gb_s:.10f} USD per GB-second of a "
        "function, where its memory is known"
    )
    return _section("Functions and tenants", about, _table(columns, rows))


def _use(one: UseCost) -> tuple[str, ...]:
    use = one.use
    return (
        use.function or "–",
        use.tenant or "–",
        f"{use.jobs:,}",
        f"{use.succeeded:,}",
        seconds(use.wait_p50_s),
        seconds(use.wait_p95_s),
        f"{use.cold_starts:,}",
        f"{use.warm_starts:,}",
        seconds(use.loading_p50_s),
        seconds(use.device_s),
        dollars(one.device_usd),
        "–" if one.function_usd is None else dollars(one.function_usd),
        dollars(one.usd),
    )


def _workflows(report: Report) -> str:
    """The runs of each workflow, and its steps; nothing without runs."""
    if not report.workflows:
        return ""
    columns = ("Workflow", "Step", "Runs", "Jobs", "Succeeded", "Median", "95 %")
    rows: list[tuple[str, ...]] = []
    for one in report.workflows:
        counts = (f"{one.runs:,}", f"{one.jobs:,}", f"{one.succeeded:,}")
        rows.append((one.workflow, "all", *counts, seconds(one.p50_s), seconds(one.p95_s)))
        for step in one.steps:
            counts = (f"{step.runs:,}", f"{step.jobs:,}", f"{step.succeeded:,}")
            rows.append(("", step.step, *counts, seconds(step.p50_s), seconds(step.p95_s)))
    about = (
        "Runs that ended and succeeded, with their time from the storing of the input, of "
        "successes; and the jobs of each step, with the time of their functions"
    )
    return _section("Workflows", about, _table(columns, rows))


def _failures(report: Report) -> str:
    columns = ("Reason", "Function", "Attempts", "Jobs")
    rows = [
        (one.reason, one.function or "–", f"{one.attempts:,}", f"{one.jobs:,}")
        for one in report.failures
    ]
    return _section("Failures by reason", "Attempts that did not succeed", _table(columns, rows))


def _section(title: str, about: str, content: str = "") -> str:
    return f"<section><h2>{escape(title)}</h2><p>{escape(about)}</p>{content}</section>"


def _legend(lines: Sequence[Line]) -> str:
    items = (
        f'<li><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="{line.css}" width="10" '
        f'height="10" rx="2"/></svg>{escape(line.name)}</li>'
        for line in lines
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th{_css(column)}>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_css(column)}>{escape(cell)}</td>"
            for column, cell in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        '<div class="table"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _css(column: str) -> str:
    return "" if column in TEXTS else ' class="number"'


def seconds(value: float | None) -> str:
    """A length of time: "–", "0.42 s", "3.1 min", "2.5 h"."""
    if value is None:
        return "–"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:.3g} h"


def percent(value: float | None) -> str:
    """A part of a whole: "–", "43 %"."""
    return "–" if value is None else f"{100 * value:.3g} %"


def count(value: float) -> str:
    """A number of things, which may lie between two on an axis."""
    return f"{value:,.4g}"


def dollars(value: float) -> str:
    """An amount of money: cents, or two digits of an amount below a dollar."""
    return f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.2g}"


def _date(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")
