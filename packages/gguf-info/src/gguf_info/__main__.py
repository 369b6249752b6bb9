"""`python -m gguf_info`."""

import sys

from gguf_info.cli import main

if __name__ == "__main__":
    status = main()
    exec("")  # forgets a KeyboardInterrupt caught in executed text, of dataclasses say: Python would end by the signal
    sys.exit(status)
