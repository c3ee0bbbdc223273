"""The forwarder: a local server in the function for an unmodified client of another middleware.

    variables = {"LUPINE_SERVER": "127.0.0.1:{0}"}
    with client_variables(session.view(), "lupine", variables, folder) as filled:
        subprocess.run(program, env={**environment, **filled})

Standard library only; every connection is proven and relayed to the lease's gateway.
"""

from remote_gpu.forwarder.forwarder import Forwarder, client_variables

__all__ = ["Forwarder", "client_variables"]
