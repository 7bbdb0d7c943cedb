"""Chat templates, token ids and tool calls as text."""
