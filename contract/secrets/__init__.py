"""References to secrets, and the calls of AWS that read them: shared by definition and runner."""
