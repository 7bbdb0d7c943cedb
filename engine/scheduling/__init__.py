"""The scheduler: events in, commands out, a state, and policies that decide."""
