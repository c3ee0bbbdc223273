"""Runs the functions of a moto server, which holds buckets, queues and functions but runs nothing.

moto's S3 events for a function go nowhere, so the bridge adds a rule beside each of them that sends
the same events to a queue of its own, and drives the embedded cloud's model of asynchronous
invocation and its sandbox from there. What moto lacks besides is listed in docs/local-cloud.md.
"""
