"""Job records, and the sessions of the orchestrators that own them."""
