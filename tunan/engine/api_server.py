"""vLLM's OpenAI server as a program: where 0.32 (CPU) and 0.23 (vllm-ascend) keep its parts.

Both are put together as vLLM's own `main` and `vllm serve` do.
"""

from argparse import Namespace
from collections.abc import Coroutine
from typing import Any

PROGRAM = "tunan serve ... --"


def parse_arguments() -> Namespace:
    """vLLM's flags from `sys.argv`. Exits through `SystemExit` with status 2 on bad ones."""
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    except ImportError:
        from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
    cli_env_setup()
    parser = make_arg_parser(FlexibleArgumentParser(prog=PROGRAM))
    args: Namespace = parser.parse_args()
    _configure_logging(args)
    validate_parsed_serve_args(args)
    return args


def run_server(args: Namespace) -> Coroutine[Any, Any, None]:
    """vLLM's own server, until it is told to stop."""
    try:
        from vllm.entrypoints.launchers.api_server import entry as server
    except ImportError:
        from vllm.entrypoints.openai import api_server as server
    running: Coroutine[Any, Any, None] = server.run_server(args)
    return running


def _configure_logging(args: Namespace) -> None:
    try:
        from vllm.logger import configure_logging_from_args
    except ImportError:  # 0.23 knows the variables only
        return
    configure_logging_from_args(args)
