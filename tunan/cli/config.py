"""`tunan config schema|check|show`: the deployment file's schema, a check, its effective values."""

import argparse
import json
from pathlib import Path
from typing import Any

EXAMPLE = """examples:
  tunan config schema > deploy.schema.json
  tunan config check deploy.yaml
  tunan config show deploy.yaml
"""


def register(subparsers: Any) -> None:
    """Adds `config` to the command line."""
    from tunan.cli.main import add_common_options

    parser = subparsers.add_parser(
        "config",
        help="schema, check and effective values of a deployment file",
        description="Looks at deployment files without starting anything.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in (
        ("schema", "print the JSON Schema"),
        ("check", "check FILE; exit status 2 with one line if it is wrong"),
        ("show", "print FILE with every default filled in"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        if name != "schema":
            action.add_argument("file", type=Path, metavar="FILE")
        add_common_options(action)


def run(args: argparse.Namespace) -> int:
    """Prints the schema, or the checked file."""
    from tunan.config import Deployment, load_deployment, refuse_unavailable

    if args.action == "schema":
        _print_json(Deployment.model_json_schema())
        return 0
    deployment = load_deployment(args.file)
    if args.action == "check":
        refuse_unavailable(deployment)
        if args.json:
            _print_json({"file": str(args.file), "valid": True})
        else:
            print(f"{args.file}: valid")  # noqa: T201
        return 0
    values = deployment.model_dump(mode="json")
    if args.json:
        _print_json(values)
    else:
        import yaml

        print(yaml.safe_dump(values, allow_unicode=True, sort_keys=False), end="")  # noqa: T201
    return 0


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))  # noqa: T201
