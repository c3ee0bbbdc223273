"""Where functions run: AWS's own runtime client in a process per concurrent execution.

`Sandbox.invoke` is one synchronous invocation; `Dispatcher` drives asynchronous ones through
`local_cloud.model.function`. Both the embedded cloud's server and the moto bridge use them.
"""
