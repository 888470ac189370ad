"""``python -m portal.supervisor``: the program behind ``./tessera up``."""

import sys

from portal.supervisor.up import main

if __name__ == "__main__":
    sys.exit(main())
