"""For all tests."""

from __future__ import annotations

import signal

# A shell that starts the tests in the background has them ignore Ctrl-C, and every program that they start inherits it.
signal.signal(signal.SIGINT, signal.default_int_handler)
