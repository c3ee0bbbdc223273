"""Authentication and authorization of ssgmd's clients: keys, roles, redaction, TLS."""
