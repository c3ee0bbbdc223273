"""The prices of a command: its options, else the price file and the paper's."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import click

from corekit.errors import invalid
from orchgpu.core.prices import Prices
from orchgpu.infra.deployment import read_prices


class Finite(click.FloatRange):
    """A range of finite numbers: a comparison with `nan` would accept it."""

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not an amount.", param, ctx)
        return number


def price_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """The options of every command that prices jobs; the command gets its `Prices`."""

    @functools.wraps(command)
    def call(
        device_usd_per_hour: float | None,
        instance_type: str | None,
        lambda_usd_per_gb_s: float | None,
        **options: object,
    ) -> int | None:
        prices = _prices(device_usd_per_hour, instance_type, lambda_usd_per_gb_s)
        return command(prices=prices, **options)

    for option in (
        click.option(
            "--lambda-usd-per-gb-s",
            type=Finite(0, min_open=True),
            help="Price of the function. [default: 0.0000166667, x86 in us-east-1]",
        ),
        click.option(
            "--instance-type",
            metavar="TYPE",
            help="Instead of a price: an EC2 type with GPUs, such as g5.xlarge; its list price.",
        ),
        click.option(
            "--device-usd-per-hour",
            type=Finite(0),
            help="Price of the device. [default: 0.90, a p2.xlarge in 2021]",
        ),
    ):
        option(call)
    return call


def _prices(
    device_usd_per_hour: float | None, instance_type: str | None, lambda_usd_per_gb_s: float | None
) -> Prices:
    standard, as_of = Prices(), Prices().as_of
    if instance_type is not None:
        if device_usd_per_hour is not None:
            raise invalid("give --device-usd-per-hour or --instance-type, not both")
        device_usd_per_hour, as_of = _list_price(instance_type)
    elif device_usd_per_hour is not None or lambda_usd_per_gb_s is not None:
        as_of = "given"
    return Prices(
        device_usd_per_hour=_or(device_usd_per_hour, standard.device_usd_per_hour),
        lambda_usd_per_gb_s=_or(lambda_usd_per_gb_s, standard.lambda_usd_per_gb_s),
        as_of=as_of,
    )


def _list_price(instance_type: str) -> tuple[float, str]:
    """US dollars an hour for each device of an instance; date and region of the price."""
    prices = read_prices()
    gpus = prices.gpus.get(instance_type)
    if gpus is None:
        known = ", ".join(prices.gpus)
        raise invalid(
            f"{instance_type!r} has no price here; give --device-usd-per-hour, or {known}"
        )
    per_hour = prices.instance_hour[instance_type] / gpus.devices
    return per_hour, f"{prices.as_of}, {prices.region}"


def _or(given: float | None, standard: float) -> float:
    return standard if given is None else given
