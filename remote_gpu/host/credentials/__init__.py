"""The credentials of this host: its certificate, and its role when it joins."""
