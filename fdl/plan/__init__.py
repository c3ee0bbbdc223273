"""From a definition to the resources it needs, and the steps that create them."""
