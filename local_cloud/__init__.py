"""The embedded cloud: the parts of AWS that one job passes through, on one machine.

`model/` holds AWS's documented rules (queues, buckets with events, asynchronous invocation) as pure
code with time as an argument; `server/` puts it behind the AWS HTTP protocols, durable on disk;
`sandbox/` runs functions under AWS's own runtime client; `bridge/` gives that sandbox to a moto
server, which runs no functions. docs/reference/local-cloud.md lists the features that are left out.
"""
