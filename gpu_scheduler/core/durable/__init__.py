"""The durable state: changes that the journal stores, their effects, snapshots, recovery."""
