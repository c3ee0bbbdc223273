"""How long a client waits for a gateway, in seconds.

Limits that only a fault reaches; `corekit.budget` holds them beside the host's own times, as
`gateway_dial_s` and so on, and checks that they fit together. Functions do not carry it.
"""

#: For the TCP connection alone: a host that does not answer by then is gone.
DIAL_S = 5.0
#: For one answer of a gateway: longer than an install may take to arrive and the lease before it to
#: be cut, shorter than a session's silence.
ANSWER_S = 20.0
#: For a door: a host may take two minutes to start a server, then it says why not.
DOOR_S = 130.0
