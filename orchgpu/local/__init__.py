"""The local system: cloud, scheduler, two GPU hosts and an orchestrator as processes here.

Owns those processes and their folder. They are started by command, never by import, as in a real
deployment. One supervisor process per system starts them in order, watches them and stops them in
order; commands find it by its folder alone.
"""
