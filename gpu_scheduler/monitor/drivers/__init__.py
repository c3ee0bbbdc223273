"""The devices of a host as their drivers report them: NVML and OpenCL."""
