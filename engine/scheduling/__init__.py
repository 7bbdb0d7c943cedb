"""The scheduler: events in, commands out, a ledger, and policies that decide."""
