"""`python -m llama_launch`."""

import sys

from llama_launch.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
