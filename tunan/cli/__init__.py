"""The command line: one file a verb, each with `register(subparsers)` and `run(args)`."""
