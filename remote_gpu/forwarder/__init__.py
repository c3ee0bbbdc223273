"""In the function: 127.0.0.1 as an unmodified client of another middleware expects it.

    given = {"LUPINE_SERVER": "127.0.0.1:{0}"}
    with client_variables(session.view(), "lupine", given, folder) as variables:
        subprocess.run(program, env={**environment, **variables})

Standard library only; every connection is carried through the proof to the lease's gateway.
"""

from remote_gpu.forwarder.forwarder import Forwarder, client_variables

__all__ = ["Forwarder", "client_variables"]
