"""Several schedulers over one log, as steps in any order: the property behind `ssgmd --standby`.

No time passes but by steps, and every step is drawn from a seed: a decision, a write that arrives
late or whose answer is lost, a read of a standby, an action, a suspension, a death. Machine, lines,
log reader, log writer and the standby's clock of silence are those of production.
"""
