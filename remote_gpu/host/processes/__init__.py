"""The processes of leases and of warm workers, from their start to their certain end."""
