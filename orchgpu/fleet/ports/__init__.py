"""Providers of hosts: `port` is what they have in common, each other module is one."""
