"""The messages of job queues, the scheduler's wake-ups, and a call of every minute."""
