"""AWS as orchestrators, commands, the scheduler and the runner meet it.

It needs boto3 alone, because the runner travels without the other packages.
"""
