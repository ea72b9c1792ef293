"""The command `extractor`: each module `<name>_command.py` here is a subcommand.

It has HELP and EXAMPLE (one line each), `add_arguments(parser)` and `run(args) -> exit code`, and imports nothing
heavy at its top: `extractor --help` must not load torch or vLLM.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from extractor import __version__
from extractor.cli import streams
from extractor.cli.system_errors import describe
from extractor.errors import ExtractorError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and turn what a person can act on into one line on stderr; other exceptions are bugs.

    Returns the exit code: 0 done, 1 error, 2 wrong usage, 3 done with rejects, 130 interrupted, 141 nobody reads the
    output any more.
    """
    streams.prepare_streams()
    warnings.formatwarning = _plain
    words = sys.argv[1:] if argv is None else argv
    name = " ".join(["extractor", *(word for word in words[:1] if not word.startswith("-"))])
    try:
        code = run_command(words)
        streams.flush_results()
    except ExtractorError as error:
        code = error.exit_code
        streams.tell(f"{name}: {error}")
    except KeyboardInterrupt:
        code = 130
        streams.tell(f"{name}: interrupted")
    except OSError as error:
        code = _system_error(name, error)
    streams.silence()
    return code


def run_command(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code, and raises the command's errors."""
    try:
        args = _parser().parse_args(argv)
        return int(args.run(args))
    except SystemExit as end:
        return _exit_code(end)


def _exit_code(end: SystemExit) -> int:
    """argparse ends with SystemExit; so does rich when it finds that its pipe is closed."""
    if isinstance(end.__context__, BrokenPipeError):
        return streams.SIGPIPE_EXIT
    return end.code if isinstance(end.code, int) else int(end.code is not None)


def _system_error(name: str, error: OSError) -> int:
    if isinstance(error, BrokenPipeError) and error.filename in streams.NAMES:
        return streams.SIGPIPE_EXIT
    streams.tell(f"{name}: {describe(error)}")
    return 1


def _plain(message: Warning | str, *_: object, **__: object) -> str:
    """A warning as a line for people: where in the code it was raised is nothing to them."""
    return f"extractor: {message}\n"


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, as every other error does."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` shows what is allowed\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="extractor", description="Hidden states for training EAGLE-3 draft models.")
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
