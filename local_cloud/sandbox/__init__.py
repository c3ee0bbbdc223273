"""Execution environments of functions: the Lambda runtime client in a process per execution.

`Sandbox.invoke` is one synchronous invocation; `Dispatcher` drives asynchronous ones through
`local_cloud.model.functions`. Both the embedded cloud's server and the moto bridge use them.
"""
