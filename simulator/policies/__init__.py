"""Queue policies of the papers, to compare with those of the scheduler. One module per policy.

They are registered in the group `orchgpu.policies`, as those of any other distribution: so `ssgmd`
has them too, without importing the simulator. Pure, as `gpu_scheduler.core.policies`.
"""
