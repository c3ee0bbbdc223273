"""The middlewares of this project: a module with an object `MIDDLEWARE` is one."""
