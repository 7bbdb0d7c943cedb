"""How far long work is, and where it is shown."""
