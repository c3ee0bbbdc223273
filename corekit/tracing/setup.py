"""The tracer of a program, by OpenTelemetry's environment variables.

Traces are on when OTEL_TRACES_EXPORTER or the address of a collector is set, unless
OTEL_SDK_DISABLED is `true`. Without them nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from corekit.tracing.span import NoTracer, Tracer

logger = logging.getLogger(__name__)

EXPORTER = "OTEL_TRACES_EXPORTER"
DISABLED = "OTEL_SDK_DISABLED"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
#: Variables whose values may be secrets.
SECRETS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
EXPORTERS = ("otlp", "console")


def is_on(environment: Mapping[str, str]) -> bool:
    """True when the environment switches traces on. A wrong value is a warning."""
    if environment.get(DISABLED, "").strip().lower() == "true":
        return False
    exporter = environment.get(EXPORTER, "").strip()
    if not exporter:
        return any(environment.get(name) for name in ENDPOINTS)
    if exporter != "none" and exporter not in EXPORTERS:
        text = "%s is %r, not one of none, %s; no traces are recorded"
        logger.warning(text, EXPORTER, exporter, ", ".join(EXPORTERS))
    return exporter in EXPORTERS


def tracer_from(environment: Mapping[str, str], service: str) -> Tracer:
    """The tracer of a program. `service` is its name unless the environment names another."""
    if not is_on(environment):
        return NoTracer()
    protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), "")
    if protocol not in ("", "http/protobuf"):
        logger.warning("traces are sent as http/protobuf; %r is not supported", protocol)
    try:
        # takes 0.3 s, belongs to an extra, and only programs with traces need it
        from corekit.tracing.opentelemetry import OpenTelemetryTracer
    except ImportError as error:
        logger.warning("no traces are recorded: %s; install orchgpu[otel]", error)
        return NoTracer()
    return OpenTelemetryTracer(service, environment)
