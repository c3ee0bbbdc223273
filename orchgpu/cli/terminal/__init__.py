"""Output to terminals: text, tables, times, completion."""
