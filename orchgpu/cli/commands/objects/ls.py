"""List functions, or the objects of one."""

from __future__ import annotations

from contextlib import closing

import click

from corekit.cli.screen import echo_json, echo_table, json_option
from corekit.cli.table import Column
from corekit.cli.times import shown_time, utc_option
from corekit.units import format_bytes
from orchgpu.cli.completing import function as function_name
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.places import SCHEME, At, outputs_of

OBJECTS = (
    Column(name="OBJECT", shrink_order=1, width_min=24, keep="both"),
    Column(name="SIZE", drop_order=2),
    Column(name="TIME", drop_order=1),
)
FUNCTIONS = (
    Column(name="FUNCTION", shrink_order=3, width_min=12),
    Column(name="INPUT", shrink_order=2, width_min=20, keep="both", drop_order=2),
    Column(name="OUTPUTS", shrink_order=1, width_min=20, keep="both", drop_order=1),
)


@click.command("ls")
@click.argument("place", required=False, shell_complete=function_name)
@utc_option
@json_option
def command(place: str | None, as_json: bool) -> None:
    """Objects below PLACE: s3://bucket/prefix, or a function, whose outputs are listed.

    Without PLACE, the deployed functions with their inputs, outputs and URLs.

    \b
    Example:  orchgpu ls text-recognition
    """
    with closing(JobCloud()) as cloud:
        if place is None:
            _list_functions(cloud, as_json=as_json)
            return
        found = [
            (at, entry)
            for at in outputs_of(cloud, place)
            for entry in cloud.objects(at.bucket, at.prefix)
        ]
    if as_json:
        objects = [
            {"bucket": at.bucket, "key": e.key, "size": e.size, "modified_s": e.modified_s}
            for at, e in found
        ]
        echo_json({"objects": objects})
        return
    rows = [
        (f"{SCHEME}{at.bucket}/{e.key}", format_bytes(e.size), shown_time(e.modified_s))
        for at, e in found
    ]
    echo_table(OBJECTS, rows, empty="no objects")


def _list_functions(cloud: JobCloud, *, as_json: bool) -> None:
    found = [
        (
            f.name,
            At(bucket=f.input_bucket, prefix=f.input_prefix).url,
            [At(bucket=one.bucket, prefix=one.prefix).url for one in f.outputs],
            cloud.url_of(f.name),
        )
        for f in cloud.functions()
    ]
    found += [
        (
            f.name,
            " ".join(f.places),
            [At(bucket=bucket, prefix=key).url for bucket, key in cloud.direct_outputs(f)],
            "",
        )
        for f in cloud.direct_functions()
    ]
    found.sort()
    if as_json:
        functions = [
            {"function": f, "input": i, "outputs": outputs, **({"url": url} if url else {})}
            for f, i, outputs, url in found
        ]
        echo_json({"functions": functions})
        return
    rows = [(name, source, " ".join(outputs), url) for name, source, outputs, url in found]
    if any(url for *_, url in rows):
        echo_table((*FUNCTIONS, Column(name="URL")), rows)
        return
    echo_table(FUNCTIONS, [row[:-1] for row in rows], empty="no function is deployed here")
