"""YAML text to located nodes and back; the only modules that know YAML."""
