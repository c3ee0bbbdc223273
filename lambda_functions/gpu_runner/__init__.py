"""The body of a deployed function: claims the device, runs the user's script, reports the end.

    handler    the entry point: dispatches each record of an event to one of the two modes
    job        job mode: claim, input, script, device given back, outputs, result
    claims     the claim of an attempt: the session of its lease, or an object
    plain      plain mode (`job: none`): one object through the script, without a job
    settings   the function's `ORCHGPU_*` variables
    limits     the division of Lambda's time among script, outputs and result
    keeping    progress and checkpoint, stored while the code runs
    document   the JSON document that the user's code writes for its result
    envelope   the archive of an attempt, read without trust
    sandbox    private folders, hidden credentials
    script/    the user's programs: steps, commands, environment, processes
    storage/   the S3 client, outputs, results and reports

It imports `contract`, `remote_gpu.{client,wire,forwarder}`, boto3 and the standard library only:
every cold start pays for each imported module.
"""
