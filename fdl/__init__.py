"""What the user declares: a SCAR file, with two sibling blocks of ours (`gpu:` and `job:`).

Pure. `parse` turns text into the frozen `model` (and is the only place that knows YAML), `lint`
says what is wrong or suspicious, `desired` says which `resources` a function means, `plan` compares
that with what exists. Knows nothing about boto3, files or the network: `orchgpu.deploy` observes
and executes.
"""
