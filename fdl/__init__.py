"""The definition of functions: a SCAR file with two sibling blocks of ours (`gpu:` and `job:`).

`text` turns YAML into located nodes and back (nothing else knows YAML), `migrate` rewrites
older shapes, `keys` is the one table of all keys, `schema` the readers of values, `parse` reads a
file into the frozen `model`. `lint` finds errors and suspicious settings, `plan` derives the cloud
resources of a function and compares them with those that exist, `graph` draws the workflow. Knows
nothing about boto3, files or the network: `orchgpu.deploy` observes and executes.
"""
