"""The weather of the cloud: AWS's documented delays, refusals and repetitions, drawn from a seed.

One value, `Weather`, has every rate and delay; each module holds the rules of one part of AWS and
names their source. docs/local-cloud.md has the table of all rules.
"""
