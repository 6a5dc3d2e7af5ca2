"""Quantities as people say them."""


def duration(seconds: float) -> str:
    """Seconds below two minutes, minutes and seconds below two hours, else hours and minutes."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
