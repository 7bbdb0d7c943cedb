"""The asyncio side of the sandbox: a supervisor process, calls, sessions."""
