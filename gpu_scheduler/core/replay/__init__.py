"""The durable state: the effects of journalled changes, and snapshots."""
