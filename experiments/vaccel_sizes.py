"""vAccel's figures over the size of a call: ciphers, matrix products, images, and a plain burn."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.pictures import Curve, Picture
from benchmarks.remote_gpu.sizes import BURNS_MS, CHUNKS, IMAGES, SIDES
from experiments.benchmarked import measured
from experiments.experiment import Beside, Evidence, Experiment, Found, Settings

#: A product on vAccel's FPGA takes about this long from the size on that its overheads are of: we
#: compare at equal times, because a core here is a thousand times as fast.
SHORT_MS, LONG_MS = 2.0, 150.0


def run(settings: Settings) -> Found:
    values = measured("remote_gpu.sizes", "--rounds", "1" if settings.quick else "3").values
    settings.advance(1.0)
    extra_us = [values[f"burn_extra_us_{ms}"] for ms in BURNS_MS]
    parts = [values[f"aes_mb_s_{n}"] / values[f"aes_in_place_mb_s_{n}"] for n in CHUNKS]
    images = [values[f"classify_overhead_pct_{side}"] for side in IMAGES]
    figures = {
        "sgemm_short_overhead_pct": _overhead_from(values, SHORT_MS),
        "sgemm_long_overhead_pct": _overhead_from(values, LONG_MS),
        "classify_overhead_pct": sum(images) / len(images),
        "aes_largest_pct": 100 * parts[-1],
        "aes_rises": parts[-1] / parts[0],
        "burn_extra_us": extra_us[0],
        "burn_spread_us": max(extra_us) - min(extra_us),
    }
    return Found(figures=figures, pictures=_pictures(values))


def _overhead_from(values: Mapping[str, float], least_ms: float) -> float:
    """The overhead of the first size that takes this long in place; of the largest one else."""
    fitting = [n for n in SIDES if values[f"sgemm_in_place_ms_{n}"] >= least_ms]
    return values[f"sgemm_overhead_pct_{fitting[0] if fitting else SIDES[-1]}"]


def _pictures(values: Mapping[str, float]) -> tuple[Picture, ...]:
    def curves(sizes: tuple[int, ...], **named: str) -> tuple[Curve, ...]:
        return tuple(
            Curve(
                name=name.replace("_", " "),
                points=tuple((size, values[f"{metric}_{size}"]) for size in sizes),
            )
            for name, metric in named.items()
        )

    return (
        Picture(
            name="vaccel-aes",
            title="AES-128-CBC by chunk",
            x="bytes",
            y="MB/s",
            curves=curves(CHUNKS, in_place="aes_in_place_mb_s", leased="aes_mb_s"),
            logarithmic_x=True,
            logarithmic_y=True,
        ),
        Picture(
            name="vaccel-sgemm",
            title="Matrix product by size",
            x="side of the matrices",
            y="MFlop/s",
            curves=curves(SIDES, in_place="sgemm_in_place_mflops", leased="sgemm_mflops"),
            logarithmic_x=True,
            logarithmic_y=True,
        ),
        Picture(
            name="vaccel-images",
            title="Overhead of classifying an image",
            x="side of the image",
            y="%",
            curves=curves(IMAGES, overhead="classify_overhead_pct"),
            logarithmic_x=True,
        ),
    )


EXPERIMENT = Experiment(
    summary="what a leased call costs over its size",
    evidence=Evidence.MEASURED,
    run=run,
    beside=Beside.NEVER,
)
