"""Text of clients and programs for a terminal, without control characters."""

REPLACEMENT = "\ufffd"


def printable(text: str) -> str:
    """The text with a replacement character for each that does not print; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or c.isprintable() else REPLACEMENT for c in text)


def printable_line(text: str, max_chars: int = 200) -> str:
    """Return the text as one printable line, truncated to `max_chars`."""
    shown = "".join(c if c.isprintable() else REPLACEMENT for c in text[:max_chars])
    return shown if len(text) <= max_chars else f"{shown}..."
