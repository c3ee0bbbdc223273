"""Emulated devices: calls take stated times instead of an accelerator's own."""
