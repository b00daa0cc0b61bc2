"""Counts on the command line: whole numbers above 0, some with a bound."""

import argparse

# Each holds some tens of MB; no disk is faster with more.
MOST_WORKERS = 64


def positive(text: str) -> int:
    """A whole number above 0; argparse makes a usage error of anything else."""
    value = int(text) if text.isdecimal() and len(text) < 20 else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return value


def worker_count(text: str) -> int:
    """A number of threads, from 1 to `MOST_WORKERS`."""
    value = positive(text)
    if value > MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{value} threads; give at most {MOST_WORKERS}")
    return value
