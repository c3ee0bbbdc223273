"""One kit for every command line: text, tables, colours, JSON, exit statuses, groups, options.

The one part of corekit that may import click and rich.
"""
