"""What a runner in a function keeps of its function's time; the orchestrator reckons with it.

Not scaled with the budget: Lambda's own limit, which they are measured against, is not either.
"""

#: Kept back at the end of a run for outputs and result: the user's code is stopped before it.
RESERVE_S = 5.0
#: A session's hard limit lies this far behind the function's own end.
CAP_SLACK_S = 30.0
