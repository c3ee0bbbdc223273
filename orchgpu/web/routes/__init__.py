"""Routes below `/api/`, by subject."""
