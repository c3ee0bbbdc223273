"""Cost of a job, on a CPU and on a remote device."""

from __future__ import annotations

from contextlib import closing

import click

from corekit.cli.screen import echo, echo_json, echo_table, json_option
from corekit.cli.table import Column
from corekit.errors import invalid
from orchgpu.cli.completing import any_job
from orchgpu.cli.jobs.lookup import known_job, whole_id
from orchgpu.cli.jobs.prices import Finite, price_options
from orchgpu.cli.options import scheduler_option
from orchgpu.core.prices import Prices
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.known import measured_run
from orchgpu.report.cost import Comparison, UsedTime, device_seconds

COSTS = tuple(Column(name=name) for name in ("ON", "SHARERS", "TIME", "COST", "OF CPU"))
#: The paper's function, without a job or another memory.
DEFAULT_MEMORY_MIB = 3072
SECONDS_MAX = 1e9
#: Numbers of jobs on one device that are compared.
SHARERS = (1, 2, 3, 4, 6, 8)


@click.command("cost")
@click.argument("job", required=False, metavar="[ID]", shell_complete=any_job)
@click.option(
    "--cpu-s",
    type=Finite(0, SECONDS_MAX, min_open=True),
    required=True,
    help="Seconds the function takes without a device.",
)
@click.option(
    "--gpu-s",
    type=Finite(0, SECONDS_MAX, min_open=True),
    help="Seconds the function takes with a device. [default: as measured for ID]",
)
@click.option(
    "--memory-mib",
    type=click.IntRange(128, 10240),
    help=f"Memory of the function. [default: {DEFAULT_MEMORY_MIB}, or ID's]",
)
@price_options
@scheduler_option
@json_option
def command(
    job: str | None,
    cpu_s: float,
    gpu_s: float | None,
    memory_mib: int | None,
    prices: Prices,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Compare the cost of a job without and with a remote device, shared by more and more jobs.

    The formula is the paper's: Lambda's GB-seconds, plus the device's time divided by the number of
    sharers. With the ID of a job that succeeded, its measured time and its memory are used, and the
    cost of what its leases held is shown beside.

    \b
    Example:  orchgpu cost --cpu-s 368 --gpu-s 118
    """
    held = None
    if job is not None:
        measured_s, its_memory_mib, device_s = _measured(job, scheduler)
        gpu_s, memory_mib = gpu_s or measured_s, memory_mib or its_memory_mib
        if device_s is not None:
            held = UsedTime(
                held_s=measured_s, device_s=device_s, memory_mib=memory_mib, prices=prices
            )
    if gpu_s is None:
        raise invalid("give --gpu-s, or the ID of a job that ran on a device")
    compared = Comparison(
        cpu_s=cpu_s, gpu_s=gpu_s, memory_mib=memory_mib or DEFAULT_MEMORY_MIB, prices=prices
    )
    if as_json:
        echo_json(_as_json(compared, held))
    else:
        _echo(compared, held)


def _measured(job: str, scheduler: str | None) -> tuple[float, int, float | None]:
    """The function's time for the job, from start to result, and the function's memory; and the
    device-seconds of its leases, None once the scheduler has forgotten them."""
    known = known_job(whole_id(job, scheduler), scheduler, despite_scheduler=True)
    if known.function is not None and not known.function.with_device:
        raise invalid(
            f"{known.job} ran without a device: its time is that of --cpu-s; give --gpu-s instead"
            " of its ID, the seconds that the function takes with one"
        )
    leases = () if known.record is None else known.record.leases
    with closing(JobCloud()) as cloud:
        time_s, memory_mib = measured_run(cloud, known)
    return time_s, memory_mib, device_seconds(leases) if leases else None


def _as_json(compared: Comparison, held: UsedTime | None) -> dict[str, object]:
    prices = compared.prices
    return {
        "held": None if held is None else {"device_s": held.device_s, "usd": held.usd},
        "cpu_s": compared.cpu_s,
        "gpu_s": compared.gpu_s,
        "memory_mib": compared.memory_mib,
        "prices": {
            "lambda_usd_per_gb_s": prices.lambda_usd_per_gb_s,
            "device_usd_per_hour": prices.device_usd_per_hour,
            "as_of": prices.as_of,
        },
        "speed_up": compared.speed_up,
        "cpu_usd": compared.cpu_usd,
        "gpu": [{"sharers": k, "usd": compared.gpu_usd(k)} for k in SHARERS],
        "break_even_speed_up": compared.break_even_speed_up(),
        "break_even_sharers": compared.break_even_sharers,
    }


def _echo(compared: Comparison, held: UsedTime | None) -> None:
    rows = [("cpu", "-", f"{compared.cpu_s:g} s", _usd(compared.cpu_usd), "1.00")]
    rows += [
        (
            "device",
            str(k),
            f"{compared.gpu_s:g} s",
            _usd(compared.gpu_usd(k)),
            f"{compared.gpu_usd(k) / compared.cpu_usd:.2f}",
        )
        for k in SHARERS
    ]
    echo_table(COSTS, rows)
    alone = compared.break_even_speed_up()
    echo(f"\n{compared.speed_up:.2f} times as fast; unshared, it pays off from {alone:.2f} times")
    sharers = compared.break_even_sharers
    if sharers is None:
        echo("not faster on the device: it does not pay off, even when it is shared")
    else:
        echo(f"at this speed the device pays off from {sharers:.2f} sharers")
    if held is not None:
        echo(
            f"its leases held {held.device_s:.3g} device-seconds;"
            f" with its function: {_usd(held.usd)}"
        )
    prices = compared.prices
    echo(
        f"prices ({prices.as_of}): {prices.lambda_usd_per_gb_s:.10f} USD per GB-second, "
        f"{prices.device_usd_per_hour:g} USD per device hour; {compared.memory_mib} MiB"
    )


def _usd(amount: float) -> str:
    return f"{amount:.4g} USD"
