"""``python -m portal.supervisor``: what ``./tessera up`` becomes."""

import sys

from portal.supervisor.up import main

if __name__ == "__main__":
    sys.exit(main())
