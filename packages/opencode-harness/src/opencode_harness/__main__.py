"""`python -m opencode_harness`."""

import sys

from opencode_harness.cli import main

if __name__ == "__main__":
    sys.exit(main())
