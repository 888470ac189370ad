"""``python -m demo``: the portal with the demo, behind ``./tessera up``."""

import argparse
import sys
from functools import partial

from demo.companion import Demo
from portal.supervisor.up import main
from tessera.isolation import PLAIN_LEVELS

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m demo", add_help=False)
    parser.add_argument("--demo-isolation", default="", choices=("", *PLAIN_LEVELS))
    parser.add_argument("--no-history", action="store_true")
    own, others = parser.parse_known_args()
    sys.exit(main(others, partial(Demo, isolation=own.demo_isolation, history=not own.no_history)))
