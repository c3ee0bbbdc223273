"""The client's timeouts for a gateway, in seconds.

Only faults reach them. `corekit.budget`, which functions do not have, repeats them
(`gateway_dial_s` and so on) and checks them against the host's own times.
"""

#: Of the TCP connection alone.
DIAL_S = 5.0
#: Of one answer: longer than an install and the revocation of the previous lease may take, shorter
#: than a session's silence.
ANSWER_S = 20.0
#: Of opening a relay: a host has two minutes to start a server, then it reports the reason.
RELAY_S = 130.0
