"""`python -m gguf_info`."""

import sys

from gguf_info.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
