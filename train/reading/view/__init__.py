"""The page that people look at: `rocstar view`. It reads what runs wrote, and writes nothing."""
