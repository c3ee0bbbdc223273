"""What travels between the scheduler and everybody else: messages, codec, the classic reply text.

Pure: no socket, no clock. Daemon, clients and hosts import it and nothing of each other.
"""
