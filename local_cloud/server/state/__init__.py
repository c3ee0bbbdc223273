"""The cloud's durable state: stored, and restored at start."""
