"""The host's side of the scheduler: probes of devices, the link to ssgmd, the HostControl port.

`gpud` (remote_gpu.host) uses `HostLink` and implements `HostControl`; `ssgm-monitor` is the link
alone, for hosts that are watched but run no gateway of ours.
"""
