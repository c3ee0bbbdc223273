"""Clouds as commands use them: one file for each provider (`orchgpu.cloud_services`)."""
