"""The command `extractor`: each module `<name>_command.py` here is a subcommand.

It has HELP and EXAMPLE (one line each), `add_arguments(parser)` and `run(args) -> exit code`, and imports nothing
heavy at its top: `extractor --help` must not load torch or vLLM.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence

from extractor import __version__
from extractor.errors import ExtractorError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 error, 2 wrong usage, 3 done with rejects, 130 interrupted."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except ExtractorError as error:
        print(f"extractor {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"extractor {args.command}: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="extractor", description="Hidden states for training EAGLE-3 draft models.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in _command_names():
        module = importlib.import_module(f"extractor.cli.{name}_command")
        sub = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=f"example: {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def _command_names() -> list[str]:
    suffix = "_command"
    return sorted(m.name.removesuffix(suffix) for m in pkgutil.iter_modules(__path__) if m.name.endswith(suffix))
