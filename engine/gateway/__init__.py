"""The gateway: conversations of foreign agents, over exact token ids."""
