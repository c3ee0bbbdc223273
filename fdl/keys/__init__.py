"""Every key of a definition, in tables that read, explain and describe it."""
