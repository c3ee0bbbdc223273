"""What happens to a job: from the S3 event to the deleted message, over every crash in between.

`core` decides and is pure; `ports` says what it needs of the world; `adapters` give it; `shell`
runs one replica; `deploy` executes FDL plans; `cli` is the `orchgpu` command.
"""
