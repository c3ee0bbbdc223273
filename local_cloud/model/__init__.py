"""Pure: what AWS documents about queues, buckets and asynchronous invocation.

Every method takes the time (`now_s`, seconds since the epoch) and changes only its own state; what
must outlive the process is told to a `Recorder`. A refused call raises `CloudError`.
"""
