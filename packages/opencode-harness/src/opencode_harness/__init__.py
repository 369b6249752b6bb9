"""Black-box tests of the real OpenCode terminal against a local llama.cpp server."""
