"""The built-in evaluation sets: source, prompt and judge of each."""
