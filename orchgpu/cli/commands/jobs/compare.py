"""One function in each place where it may run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corekit.cli.screen import echo, echo_json, echo_table
from corekit.cli.table import Column
from corekit.cli.text import printable
from corekit.decode import encode
from corekit.errors import AppError
from corekit.units import format_bytes, parse_duration_s
from corekit.values import Value, replace
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Record
from gpu_scheduler.protocol import ops
from orchgpu.cli.completing import function_or_definition
from orchgpu.cli.jobs.prices import price_options
from orchgpu.cli.jobs.report import NOT_SUCCEEDED_STATUS, echo_progress
from orchgpu.cli.options import Deploying, cloud_options, deploy_options, scheduler_option
from orchgpu.cloud_services import Address
from orchgpu.core.execution import Choice, Place, place_of
from orchgpu.core.function import Function as Deployed
from orchgpu.core.prices import Prices
from orchgpu.jobs.cancelling import cancel_job
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.following import LOOK_EVERY_S, Followed, follow
from orchgpu.jobs.scheduler import ask, scheduler_address
from orchgpu.jobs.transfers import inputs_of, submit_all
from orchgpu.jobs.uploaded import Submitted
from orchgpu.replica.host_facts import host_facts

if TYPE_CHECKING:
    from fdl.model import Document, Function
    from orchgpu.report.ways import Figures, Row, Way

COLUMNS = tuple(
    Column(name=name)
    for name in ("WAY", "JOBS", "TOTAL", "WAITS", "STARTS", "CODE", "IN", "OUT", "COST")
)
#: The leases of a job that is over release their shares within this.
FREED_WITHIN_S = 10.0


@click.command("compare")
@click.argument("file", metavar="FDL", type=Path, shell_complete=function_or_definition)
@click.argument("given", nargs=-1, required=True, metavar="INPUT...", type=click.Path())
@click.option("--keep", is_flag=True, help="Leave the variants deployed.")
@click.option("--timeout", metavar="DURATION", help="Give a way up after this, as in 90s or 5m.")
@price_options
@deploy_options
@cloud_options
@scheduler_option
def command(
    file: Path,
    given: tuple[str, ...],
    keep: bool,
    timeout: str | None,
    prices: Prices,
    deploying: Deploying,
    address: Address,
    scheduler: str | None,
    as_json: bool,
) -> int:
    """Run the only function of FDL on INPUTs in Lambda with a remote device, on the host of its
    device, and in Lambda without one; compare time, bytes and cost.

    Each way is a variant NAME-compare-WAY with one attempt for each job, in the same buckets below
    compare-WAY/. The variants are removed at the end, also after Ctrl-C; objects, and the variants'
    intermediate buckets, stay.
    Times and cost are means over the jobs that succeeded; the first one of each way starts cold.
    Ends with 1 when no way succeeded.

    \b
    Example:  orchgpu compare fdl.yaml sign.png
    """
    # the other commands do not read definitions
    from orchgpu.cli.definition.deploying import runnable
    from orchgpu.cli.definition.target import open_target, run_address
    from orchgpu.deploy.files import read_document
    from orchgpu.report.ways import Way, compared

    document = read_document(file)
    subject = compared(document, runnable(document))
    with open_target(address, document) as target:
        target.guard(deploying.yes_real_aws)
        there = run_address(target, address, document)
    run = _Comparison(
        file=file,
        document=document,
        subject=subject,
        given=given,
        within_s=None if timeout is None else parse_duration_s(timeout),
        prices=prices,
        deploying=deploying,
        address=there,
        scheduler=scheduler_address(scheduler, there),
        keep=keep,
    )
    with run.removed():
        rows = [run.row(way) for way in Way]
        choice = run.choice(rows)
    if as_json:
        found = {"ways": [encode(one) for one in rows], "auto": encode(choice)}
        echo_json({"function": subject.name, **found, "prices": encode(prices)})
    else:
        _echo(rows, choice, prices)
    return 0 if any(one.mean is not None for one in rows) else NOT_SUCCEEDED_STATUS


class _Comparison(Value):
    """One comparison of the command."""

    file: Path
    document: Document
    subject: Function
    given: tuple[str, ...]
    within_s: float | None
    prices: Prices
    deploying: Deploying
    address: Address
    scheduler: str
    keep: bool

    @contextmanager
    def removed(self) -> Iterator[None]:
        """Remove the variants at the end of the block, whatever happens in it."""
        from orchgpu.cli.definition.target import execute_shown, open_target
        from orchgpu.deploy.deployment import prepare_removal
        from orchgpu.report.ways import Way, variant_name

        try:
            yield
        finally:
            if not self.keep:
                echo("the variants are removed", err=True)
                names = [variant_name(self.subject.name, way) for way in Way]
                with open_target(self.address, self.document) as target:
                    prepared = prepare_removal(names, target.cloud, force=True)
                    execute_shown(prepared, target, as_json=True, aside=True)

    def row(self, way: Way) -> Row:
        """Deploy a variant and run it. A failure is in the row."""
        from orchgpu.report.ways import row

        echo(f"{way}: {way.meaning}", err=True)
        try:
            jobs = self._run(way)
        except AppError as error:
            echo(f"{way}: {error.message}", err=True)
            return row(way, (), f"{error.code.name}: {error.message}")
        found = [self._figures(way, one) for one in jobs]
        failed = next((one for one in jobs if not one.succeeded), None)
        detail = failed.result.detail if failed is not None and failed.result is not None else ""
        return row(way, found, f"{failed.where} {failed.reason}: {detail}" if failed else "")

    def _run(self, way: Way) -> Sequence[Followed]:
        from orchgpu.cli.definition.deploying import deploy
        from orchgpu.report.ways import variant, variant_name

        document = variant(self.document, self.subject, way)
        deploy(
            self.file,
            document,
            self.address,
            self.scheduler,
            self.deploying,
            as_json=True,
            aside=True,
        )
        with self._cloud() as cloud:
            function = cloud.function(variant_name(self.subject.name, way))
            files = inputs_of(cloud, function, self.given, partial(echo, err=True))
            submitted = submit_all(cloud, function, files, 1, lambda _: None, again=True)
            try:
                following = follow(
                    cloud, self.scheduler, submitted, echo_progress, within_s=self.within_s
                )
                return asyncio.run(following)
            except BaseException:
                self._cancel(cloud, submitted)
                raise

    def _cancel(self, cloud: JobCloud, submitted: Sequence[Submitted]) -> None:
        for one in submitted:
            with contextlib.suppress(AppError):  # it is over
                name, job = one.function.name, one.job_ids[0]
                cancel_job(cloud, self.scheduler, job, name, "its comparison ended before it")

    def _cloud(self) -> closing[JobCloud]:
        there = self.address
        return closing(JobCloud(there.endpoint_url, there.region, there.profile))

    def _figures(self, way: Way, job: Followed) -> Figures:
        from orchgpu.report.ways import figures

        return figures(
            way,
            job.job_id,
            job.where,
            self._freed(job.record),
            job.result,
            memory_mib=job.submitted.function.memory_mib,
            prices=self.prices,
        )

    def _freed(self, record: Record | None) -> Record | None:
        """The record once its leases have released their shares, or after `FREED_WITHIN_S`."""
        if record is None or not _holds(record):
            return record
        return ask(self.scheduler, partial(_once_freed, record))

    def choice(self, rows: Sequence[Row]) -> Choice:
        """The place that `execution: auto` would choose now, for the largest of the inputs."""
        from orchgpu.report.ways import Way, refuse_misplaced, variant_name

        size = max((one.input_bytes or 0 for found in rows for one in found.jobs), default=0)
        try:
            refuse_misplaced(replace(self.subject, execution="auto"))
        except AppError as error:
            place = Place.LAMBDA if self.subject.host.image is None else Place.HOST
            return Choice(place=place, why=error.message)
        try:
            with self._cloud() as cloud:
                on_host = cloud.function(variant_name(self.subject.name, Way.HOST))
        except AppError:  # it was not deployed
            why = next(one.why for one in rows if one.way is Way.HOST)
            return Choice(place=Place.LAMBDA, why=f"a host does not run it: {why}")
        return ask(self.scheduler, partial(_choice, on_host, int(size)))


def _holds(record: Record) -> bool:
    return any(one.freed_s is None for one in record.leases)


async def _once_freed(record: Record, client: SchedulerClient) -> Record:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FREED_WITHIN_S):
            while _holds(record):
                await asyncio.sleep(LOOK_EVERY_S)
                record = (await client.ask(ops.RecordOf(holder=record.holder))).record or record
    return record


async def _choice(on_host: Deployed, size: int, client: SchedulerClient) -> Choice:
    auto = replace(on_host, execution="auto")
    facts = await host_facts(client, [auto])
    return place_of(auto, facts[auto.name], size=size, ran_out=False)


def _echo(rows: Sequence[Row], choice: Choice, prices: Prices) -> None:
    echo_table(COLUMNS, [_cells(one) for one in rows])
    for one in rows:
        if one.why:
            echo(printable(f"{one.way}: {one.why}"))
    echo(f"execution: auto would choose {choice.place}: {printable(choice.why)}")
    echo(
        f"prices ({prices.as_of}): {prices.lambda_usd_per_gb_s:.10f} USD per GB-second, "
        f"{prices.device_usd_per_hour:g} USD per device hour"
    )


def _cells(of: Row) -> Sequence[str]:
    mean = of.mean
    jobs = f"{sum(one.succeeded for one in of.jobs)} of {len(of.jobs)}"
    if mean is None:
        return (str(of.way), jobs, *("-",) * (len(COLUMNS) - 2))
    times = (mean.total_s, mean.waiting_s, mean.start_s, mean.code_s)
    sizes = (mean.input_bytes, mean.output_bytes)
    return (
        str(of.way),
        jobs,
        *("-" if one is None else f"{one:.2f} s" for one in times),
        *("-" if one is None else format_bytes(round(one)) for one in sizes),
        "-" if mean.usd is None else f"{mean.usd:.4g} USD",
    )
