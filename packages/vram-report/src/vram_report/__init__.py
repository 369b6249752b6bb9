"""Reads a llama-server start-up log and explains what the VRAM went to."""
