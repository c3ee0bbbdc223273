"""Traces: the context of a span by the W3C recommendation, spans as values, the port of tracers."""
