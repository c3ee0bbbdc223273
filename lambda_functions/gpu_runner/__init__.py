"""The body of a deployed function: claim the lent device, run the user's script, tell the truth.

One module per step, in the order of a job:

    handler      which mode an event is for; every record of it is handled
    archive      a zip or tar.gz from outside, read without trust
    envelope     what it says of the attempt
    job          one attempt: session, input, script, give back, outputs, result
    plain        one object of a function without device
    hiding       what the script is not given stays out of its reach
    workspace    the private folder of one run, nothing of it is left
    environment  what the script finds in its environment, built from empty
    steps        what runs: one program, or the steps of a group in a row
    command      which program a script is run by (its own shebang)
    call         calls a Python handler, in its own process
    script       runs it in a process group, within its time, while its session lives
    outputs      which files go where, and their upload
    commit       the result, once and last; the report of a failed attempt
    storage      the S3 client and S3's errors in our words

It imports `contract`, `remote_gpu.{client,wire,forwarder}`, boto3 and the standard library only:
whatever it loads is paid for by every cold start.
"""
