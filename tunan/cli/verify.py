"""`tunan verify`: re-hashes a converted checkpoint and names what is wrong with it."""

import argparse
import json
import os
import time
from pathlib import Path

from tunan.cli.counts import MOST_WORKERS, worker_count
from tunan.errors import CheckFailedError

_EXAMPLE = """\
example:
  tunan verify ./r1
"""


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb to the command line."""
    from tunan.cli.main import add_common_options

    parser = subparsers.add_parser(
        "verify",
        help="check a converted checkpoint against its manifest",
        description="Re-reads every file of a converted checkpoint and compares size, sha256 "
        "and index with tunan.json. Exit status 1 if anything differs.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", type=Path, metavar="DIR")
    cores = min(MOST_WORKERS, len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--workers", type=worker_count, default=cores, metavar="N", help="default: one a core"
    )
    add_common_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Verifies; raises CheckFailedError that names the first problem."""
    from tunan.checkpoint.manifest import Manifest
    from tunan.checkpoint.verify import total_bytes, verify
    from tunan.cli.progress import byte_progress

    manifest = Manifest.read(args.directory)
    size = total_bytes(manifest)
    progress = byte_progress("verify", size)
    begin = time.monotonic()
    try:
        problems = verify(args.directory, manifest, args.workers, progress.advance)
    finally:
        progress.close()
    seconds = time.monotonic() - begin
    if args.json:
        content = {
            "directory": str(args.directory),
            "blocks": len(manifest.blocks),
            "bytes": size,
            "seconds": round(seconds, 3),
            "problems": [{"file": p.file, "what": p.what} for p in problems],
        }
        print(json.dumps(content))  # noqa: T201
    if problems:
        more = f" ({len(problems)} problems in all)" if len(problems) > 1 else ""
        raise CheckFailedError(
            f"{args.directory / str(problems[0])}{more}; convert the checkpoint again"
        )
    if not args.json:
        print(  # noqa: T201
            f"{args.directory}: {len(manifest.blocks)} blocks and {len(manifest.files)} files "
            f"are what the manifest says, {size / 1e9:.2f} GB in {seconds:.1f} s"
        )
    return 0
