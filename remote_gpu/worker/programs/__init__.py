"""Programs of the operator's list: how they are called, and the process that ends them."""
