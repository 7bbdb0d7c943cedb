"""Flight simulator of the scheduler: the real state machine and policies, replicas made of arithmetic."""
