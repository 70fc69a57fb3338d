"""Numbers and durations as text. Imports no TensorFlow."""

import math


def number(value: float) -> str:
    """Formats a value with four significant digits: `0.4321`, `12.50`, `3.100e-05`, `51,200`."""
    return f"{value:,.0f}" if 999.95 <= abs(value) < 1e15 else f"{value:#.4g}"


def rate(value: float) -> str:
    """Formats a rate per second: `12,346`, `3.24`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Formats seconds as `1:02:03`; `-:--:--` if not finite."""
    if not math.isfinite(seconds):
        return "-:--:--"
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
