"""The program `tunan`, and `python -m tunan`."""

import sys


def run() -> int:
    """`tunan.cli.main.main()`, where an interruption while it is still loaded is one line too."""
    try:
        from signal import SIG_DFL, SIGINT, signal

        from tunan.cli.main import main

        status = main()
        signal(SIGINT, SIG_DFL)  # from here on there is nothing left to say
    except KeyboardInterrupt:
        if sys.stderr:
            sys.stderr.write("tunan: interrupted\n")
        return 130
    return status


if __name__ == "__main__":
    sys.exit(run())
