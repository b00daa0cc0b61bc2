"""Errors that reach the user: one line saying what, where and what to do next.

The command line prints the message on stderr and exits with the class's status
(see docs/en/exit-status.md); anything else that escapes is a defect of ours.
"""


class TunanError(Exception):
    """Base of everything the command line prints as one line. Exit status 1."""

    exit_status = 1


class CheckFailedError(TunanError):
    """What was asked for is not so: a file is corrupt, a check failed. Exit status 1."""


class UsageError(TunanError):
    """Wrong use: a bad option, a bad deployment file, a destination that exists. Exit status 2."""

    exit_status = 2


class OutsideError(TunanError):
    """Something outside Tunan is missing or broken: the engine, a device. Exit status 3."""

    exit_status = 3
