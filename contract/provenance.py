"""The provenance of a result, `Result.provenance`: the code, the input, and all that a job used.

    {"function": {"name", "revision", "package_sha256", "image"},
     "input": {"bucket", "key", "version", "etag", "size", "sha256"},
     "tenant": "default", "parameters": {"NAME": "value"},
     "devices": [{"host", "kind", "model", "driver"}],
     "operations": [{"name", "implementation"}],
     "data": {"proteins": "<sha256>"}, "programs": {"blast": "<sha256>"},
     "resources": [{"type", "sha256", "source"}],
     "versions": {"orchgpu", "runner", "python"}}

The orchestrator writes the first rows and its version into the envelope; the runner adds what it
saw. A value that is not known is absent. Readers keep keys of newer versions.
"""

#: The release of these packages: of the orchestrator, and of the runner in a function's package.
RELEASE = "0.1.0"
