"""IAM policies of the roles of a system: one file for each in `roles`, found by presence.

The actions are those of `infra/README.md`; a test compares the two. `orchgpu iam ROLE` prints a
policy, and `orchgpu doctor --aws` simulates it.
"""
