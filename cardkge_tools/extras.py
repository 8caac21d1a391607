"""Optional extras."""

from cardkge import CardkgeError


def missing_extra(option, error, extra):
    return CardkgeError(f"{option} needs {error.name}, which is not installed: pip install -e '.[{extra}]'")
