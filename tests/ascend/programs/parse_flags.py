"""Has vLLM's own command line (0.23, with vllm-ascend's platform) parse lists of arguments.

Reads `[[argument, ...], ...]` as JSON from the file given; prints for each the settings that differ
from the defaults, or what was refused.
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser


def _parsed(arguments: list[str]) -> dict[str, Any]:
    parser = make_arg_parser(FlexibleArgumentParser())
    defaults = vars(parser.parse_args(["model"]))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            given = parser.parse_args(arguments)
        validate_parsed_serve_args(given)
    except SystemExit:
        return {"refused": said.getvalue()}
    except (TypeError, ValueError) as error:
        return {"refused": str(error)}
    return {
        name: repr(value)
        for name, value in vars(given).items()
        if repr(value) != repr(defaults.get(name))
    }


if __name__ == "__main__":
    lists = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write(f"RESULT {json.dumps([_parsed(arguments) for arguments in lists])}\n")
