"""Decisions about a fleet: from demand, hosts and offers to starts, drains and stops. Pure."""
