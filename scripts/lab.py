"""Open the course in JupyterLab: ``make lab``. First bring what checks expect up to date.

PORT=9000 chooses the port. All arguments go to `simlib lab`.
"""

import sys

from install import ROOT, write_checks

if __name__ == "__main__":
    write_checks()
    sys.path.insert(0, str(ROOT))
    from simlib.cli import main

    sys.exit(main(["lab", *sys.argv[1:]]))
