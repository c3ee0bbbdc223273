"""Execution of `fdl`'s plans in a cloud.

`files` reads what the user wrote, `package` builds the function's zip, `ports` is the cloud that an
adapter observes and changes, `deployment` ties them together. `fdl.plan.plan` decides.
"""
