"""`python -m vram_report`."""

from __future__ import annotations

import sys

from vram_report.cli import main

if __name__ == "__main__":
    status = main()
    exec("")  # forgets a KeyboardInterrupt caught in executed text, of dataclasses say: Python would end by the signal
    sys.exit(status)
