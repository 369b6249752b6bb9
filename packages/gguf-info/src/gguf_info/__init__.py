"""What is in a GGUF model file, and what it will need, without a server."""
