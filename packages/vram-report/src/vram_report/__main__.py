"""`python -m vram_report`."""

from __future__ import annotations

import sys

from vram_report.cli import main

if __name__ == "__main__":
    sys.exit(main())
