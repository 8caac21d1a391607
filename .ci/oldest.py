"""The oldest versions that setup.cfg allows, one requirement a line: of what every user needs, and of the extras named.

python .ci/oldest.py [EXTRA...]
"""

import configparser
import re
import sys
from pathlib import Path

SETUP = Path(__file__).resolve().parent.parent / "setup.cfg"


def oldest(extras):
    """`name==version` for each `name>=version`."""
    setup = configparser.ConfigParser()
    setup.read(SETUP, encoding="utf-8")
    lines = [setup["options"]["install_requires"], *(setup["options.extras_require"][extra] for extra in extras)]
    found = re.findall(r"^([\w-]+)>=([\w.]+)$", "\n".join(lines), re.MULTILINE)
    return [f"{name}=={version}" for name, version in found]


if __name__ == "__main__":
    print("\n".join(oldest(sys.argv[1:])))
