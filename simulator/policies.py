"""`python -m simulator.policies`: one workload under every policy of the queue, side by side.

Three tenants request devices: one floods the queue, one requests rarely, one requests gangs. Most
requests state the length of their lease. The seed determines arrivals and run times, which are the
same for every policy. No quota may be broken, and no request may wait beyond the bound of the
policies that only order.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass

import click

from gpu_scheduler.model import Request, Sharing
from gpu_scheduler.parameters import Parameters, Quota
from gpu_scheduler.policy_registry import installed_policies
from simulator.faults.checkers import Violation
from simulator.pool import DEVICE_MIB, Pool, Use

#: Tenant → its part of the requests.
TENANTS = {"flood": 0.7, "rare": 0.15, "gangs": 0.15}
LENGTHS_S = (5.0, 20.0, 60.0, 300.0)
LENGTH_WEIGHTS = (8, 5, 3, 1)
KNOWN_RATE = 0.8  #: part of the requests that state their length
LOAD = 1.3  #: arriving work / capacity, until the last request


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """The results of one policy."""

    policy: str
    requests: int
    used_rate: float  #: of all device time until the last request came
    wait_mean_s: float
    wait_p99_s: float
    wait_max_s: float
    tenants_wait_mean_s: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of the workload."""

    at_s: float
    request: Request
    runs_s: float


def workload(seed: int, requests: int, devices: int) -> list[Arrival]:
    """The arrivals: time, request and run time of each."""
    stream = random.Random(f"{seed}/policies")
    now_s, arrivals = 0.0, []
    for _ in range(requests):
        tenant = stream.choices(list(TENANTS), list(TENANTS.values()))[0]
        runs_s = stream.choices(LENGTHS_S, LENGTH_WEIGHTS)[0] * stream.uniform(0.5, 1.0)
        known = stream.random() < KNOWN_RATE
        request = _request(tenant, runs_s if known else None, stream)
        arrivals.append(Arrival(at_s=now_s, request=request, runs_s=runs_s))
        now_s += stream.expovariate(1.0) * runs_s * _part(request) / (LOAD * devices)
    return arrivals


def _request(tenant: str, lease_s: float | None, stream: random.Random) -> Request:
    if tenant == "gangs":
        count = stream.choice((2, 4))
        return Request(tenant=tenant, count=count, sharing=Sharing.EXCLUSIVE, lease_s=lease_s)
    memory_mib = stream.choice((DEVICE_MIB // 4, DEVICE_MIB // 2, DEVICE_MIB))
    return Request(tenant=tenant, memory_mib=memory_mib, lease_s=lease_s)


def _part(request: Request) -> float:
    """The number of devices that a request fills."""
    if request.sharing is Sharing.EXCLUSIVE:
        return request.count
    return request.count * request.memory_mib / DEVICE_MIB


def run_policy(arrivals: list[Arrival], devices: int, parameters: Parameters) -> PolicyResult:
    """Run the workload. Raises Violation for a broken quota or a wait beyond the bound."""
    pool = Pool(devices, parameters)
    for arrival in arrivals:
        pool.advance(arrival.at_s)
        pool.ask(arrival.request, arrival.runs_s)
    pool.drain()
    uses = list(pool.uses.values())
    if not parameters.quotas and pool.machine.state.ordering is not None:
        _within_bound(pool, uses)
    waits_s = sorted(use.waited_s for use in uses)
    return PolicyResult(
        policy=parameters.policy,
        requests=len(uses),
        used_rate=_used(uses, arrivals[-1].at_s) / (devices * arrivals[-1].at_s),
        wait_mean_s=_mean(waits_s),
        wait_p99_s=waits_s[len(waits_s) * 99 // 100],
        wait_max_s=waits_s[-1],
        tenants_wait_mean_s={
            tenant: _mean([use.waited_s for use in uses if use.request.tenant == tenant])
            for tenant in TENANTS
        },
    )


def _within_bound(pool: Pool, uses: list[Use]) -> None:
    for use in uses:
        bound_s = pool.bound_s(use)
        if use.waited_s > bound_s:
            raise Violation(f"{use.attempt} waited {use.waited_s:.0f} s of {bound_s:.0f} s")


def _used(uses: list[Use], until_s: float) -> float:
    """Device seconds allocated before that moment."""
    allocated = ((use, use.asked_s + use.waited_s) for use in uses)
    return sum(
        _part(use.request) * max(0.0, min(until_s, began_s + use.runs_s) - began_s)
        for use, began_s in allocated
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


@click.command()
@click.option("--requests", default=1000, show_default=True)
@click.option("--devices", default=16, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--quota", type=int, help="Devices that the flooding tenant may hold.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(requests: int, devices: int, seed: int, quota: int | None, as_json: bool) -> None:
    """Compare the policies of the queue on one workload.

    Example: python -m simulator.policies --devices 64 --requests 5000
    """
    arrivals = workload(seed, requests, devices)
    quotas = {} if quota is None else {"flood": Quota(devices=quota)}
    verdicts = [
        run_policy(arrivals, devices, Parameters(policy=policy, quotas=quotas))
        for policy in installed_policies()
    ]
    if as_json:
        click.echo(json.dumps({"seed": seed, "policies": [asdict(v) for v in verdicts]}))
        return
    tenants = "".join(f"{tenant:>12}" for tenant in TENANTS)
    click.echo(f"{'policy':10}{'used':>7}{'mean s':>9}{'p99 s':>9}{'max s':>9}{tenants}")
    for v in verdicts:
        theirs = "".join(f"{v.tenants_wait_mean_s[tenant]:12.1f}" for tenant in TENANTS)
        times = f"{v.wait_mean_s:9.1f}{v.wait_p99_s:9.1f}{v.wait_max_s:9.1f}"
        click.echo(f"{v.policy:10}{v.used_rate:7.1%}{times}{theirs}")


if __name__ == "__main__":
    main()
