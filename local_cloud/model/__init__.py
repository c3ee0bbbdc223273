"""AWS's documented rules of queues, buckets and asynchronous invocation. Pure.

Every method takes the time (`now_s`, seconds since the epoch) and changes only its own state;
durable state is passed to a `Recorder`. A refused call raises `CloudError`.
"""
