"""The life of a job, from the S3 event to the deleted message, over every crash in between.

`core` decides and is pure; `ports` declares what it needs; `adapters` implement that; `shell`
runs one replica; `deploy` executes FDL plans; `cli` is the `orchgpu` command.
"""
