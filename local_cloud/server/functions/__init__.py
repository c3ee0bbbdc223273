"""Lambda over its REST protocol: control plane, invocation, and the code behind it."""
