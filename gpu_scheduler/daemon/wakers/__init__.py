"""Ways of wake-ups: a module for each, `open_sender(address) -> Sender`, found by presence."""
