"""The asyncio half of corekit: clock, virtual-time loop, supervision, the one driver.

Daemons import it; cores never do (import-linter holds that).
"""
