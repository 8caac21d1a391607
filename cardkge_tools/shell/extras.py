"""Optional extras."""

from cardkge import CardkgeError


def missing_extra(option, error, extra):
    """The error for an option whose optional package is not installed; `error` the ImportError."""
    return CardkgeError(f"{option} needs {error.name}, which is not installed: pip install -e '.[{extra}]'")
