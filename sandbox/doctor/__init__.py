"""Which layers hold a program on this machine, what the missing ones cost, and how to get them."""
