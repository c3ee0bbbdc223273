"""A check in a real AWS account: deploys the smallest function, measures, and removes everything.

    python -m tools.aws_live_check                  plan and cost, then a question, then the check
    python -m tools.aws_live_check --clean-up RUN   remove what an interrupted run left

Everything that it makes has the run's id in its name, and a tag where AWS has tags at hand.
docs/how-to/aws-live-check.md describes it. Tests run it against a local cloud, never against AWS.
"""
