"""What the user declares: a SCAR file, with two sibling blocks of ours (`gpu:` and `job:`).

Pure. `compose` turns text into nodes (and is the only place that knows YAML), `migrate` rewrites
older shapes, `keys` is the one table of all keys, `parse` reads them into the frozen `model`.
`lint` says what is wrong or suspicious, `desired` says which `resources` a function means, `plan`
compares that with what exists. `render`, `reference`, `graph` and `drawing` are for people. Knows
nothing about boto3, files or the network: `orchgpu.deploy` observes and executes.
"""
