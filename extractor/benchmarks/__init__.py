"""Runs the files of `bench/`, keeps what they measured, and compares two runs. The measuring itself is in `bench/`."""
