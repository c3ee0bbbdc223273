"""A system in an AWS account by one CloudFormation template: `orchgpu infra`.

`files` is the repository's folder `infra`: the template, and the units of its machines. The modules
`changes`, `costs`, `model`, `quotas` and `template` decide and describe, without I/O; `bundles`
packs what machines install, `deployment` is the order of things over the port `Stacks`, and
`machine` is the program that a machine of the stack starts with.
"""
