"""The part of a function's time that its runner keeps back; the orchestrator allows for it.

Not scaled with the timing budget, because Lambda's own limit is not.
"""

#: Kept back at the end of a run for outputs and result: the user's code is stopped before.
RESERVE_S = 5.0
#: From the function's own end to the hard limit of its session.
CAP_SLACK_S = 30.0
#: Kept back when it is more than RESERVE_S: this part of the whole time.
RESERVE_PART = 0.1
#: Of a very short function at most this part is kept back: the script gets the larger half.
RESERVE_PART_MAX = 0.5


def kept_back(whole_s: float, threshold_s: float) -> tuple[float, str]:
    """Seconds of a run that the runner keeps for outputs and result, and the deciding rule.

    `threshold_s` is `container.timeout_threshold`. The rule is one of `half`, `timeout_threshold`,
    `minimum`, `part`; reports of a timeout name it.
    """
    part_s, most_s = RESERVE_PART * whole_s, RESERVE_PART_MAX * whole_s
    rules = {"timeout_threshold": threshold_s, "minimum": RESERVE_S, "part": part_s}
    rule = max(rules, key=lambda name: rules[name])
    return (most_s, "half") if rules[rule] > most_s else (rules[rule], rule)
