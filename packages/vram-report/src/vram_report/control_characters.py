"""Text from logs, models and servers is data: what would steer a terminal is shown instead of obeyed."""

__all__ = ["visible"]


def visible(text: str, *, keep: str = "") -> str:
    """Text with control and bidirectional characters as escapes, safe to print on a terminal.

    Args:
        text: Any text.
        keep: Characters that stay as they are, such as line ends.
    """
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)
