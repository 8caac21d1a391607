"""TODO"""

from cardkge import CardkgeError
from cardkge_tools.terminal import option


def missing_extra(option, error, extra):
    return CardkgeError(f"{option} needs {error.name}, which is not installed: pip install -e '.[{extra}]'")
