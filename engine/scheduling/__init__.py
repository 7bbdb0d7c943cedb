"""What the scheduler is made of: events in, commands out, a ledger, and policies that decide."""
