"""Runs the functions of a moto server, which holds buckets, queues and functions but runs nothing.

moto drops S3 events for functions, so the bridge mirrors each rule with one that sends the same
events to a queue of its own, and drives the embedded cloud's model of asynchronous invocation and
its sandbox from there. docs/reference/local-cloud.md lists the other differences between moto and
AWS.
"""
