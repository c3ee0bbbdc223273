"""What travels between the scheduler and everybody else: messages, codec, the classic reply text.

Pure: no socket, no clock. The daemon, its clients and the hosts import it and nothing of each other.
"""
