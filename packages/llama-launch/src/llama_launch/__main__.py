"""`python -m llama_launch`."""

import sys

from llama_launch.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    status = main()
    exec("")  # forgets a KeyboardInterrupt caught in executed text, of dataclasses say: Python would end by the signal
    sys.exit(status)
