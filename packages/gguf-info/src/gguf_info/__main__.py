"""`python -m gguf_info`."""

import sys

from gguf_info.cli import main

if __name__ == "__main__":
    sys.exit(main())
