"""The connection of programs to ssgmd, multiplexed and self-repairing; the command `ssgm`.

`channel` is the connection, for requesters and hosts alike; `client` sends every op of a requester,
and has methods for those that several programs send.
"""

from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.client.pushes import Connected, Disconnected, PushWord

__all__ = ["Connected", "Disconnected", "PushWord", "SchedulerClient"]
