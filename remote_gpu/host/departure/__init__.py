"""The departure of this host: notices that it leaves, the drain, and its end."""
