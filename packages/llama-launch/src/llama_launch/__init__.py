"""Starts llama-server from a reviewed profile, waits until it is ready and stops it cleanly."""
