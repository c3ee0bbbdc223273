"""Execution of `fdl`'s plans in a cloud.

`files` reads what the user wrote, `package` builds the function's zip, `aws` observes and applies
by plain boto3, `deployment` ties them together. Decisions are made in `fdl.plan.plan`, not here.
"""
