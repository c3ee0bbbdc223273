"""Jobs as commands and the console see them: records, objects in the cloud, logs, letters, changes.

Everything here raises `AppError` only, prints nothing and knows no command line.
"""
