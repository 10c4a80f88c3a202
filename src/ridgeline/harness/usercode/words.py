"""What an exception says, in a line."""


def first_words(error: object) -> str:
    """The first line that has something on it; where that only announces what follows, with it:
    «backend='inductor' raised:», «Error(s) in loading state_dict for Net:»."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    announces = len(lines) > 1 and lines[0].endswith(":")
    return " ".join(lines[: 2 if announces else 1])
