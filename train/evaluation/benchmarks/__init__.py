"""Built-in evaluation sets: where each comes from, how it is asked, how it is scored."""
