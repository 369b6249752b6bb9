"""`python -m opencode_harness`."""

import sys

from opencode_harness.cli import main

if __name__ == "__main__":
    status = main()
    exec("")  # forgets a KeyboardInterrupt caught in executed text, of dataclasses say: Python would end by the signal
    sys.exit(status)
