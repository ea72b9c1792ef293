"""`extractor extract`: the options are the fields of Config."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extractor.config import Config
from extractor.replicas.options import ReplicaOptions, require_replicas
from extractor.shell import shell_command
from extractor.sizes import counted

if TYPE_CHECKING:
    from extractor.summary import Summary

HELP = "run the model and store the hidden states"
EXAMPLE = "extractor extract samples.parquet --model model/ --out store/ --tp 8 --last"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for item in fields(Config):
        _add_field(parser, item)
    group = parser.add_argument_group("replicas on a Ray cluster")
    for item in fields(ReplicaOptions):
        _add_field(group, item, given_only=True)
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON document")


def _add_field(parser: argparse._ActionsContainer, item: Field[Any], *, given_only: bool = False) -> None:
    """`given_only`: what is not given leaves no attribute, so that it differs from a default that is given."""
    text = item.metadata["help"]
    if item.name == "samples":
        parser.add_argument("samples", type=Path, metavar="SAMPLES", help=text)
        return
    flag = "--" + item.name.replace("_", "-")
    default = argparse.SUPPRESS if given_only else item.default
    if item.default is MISSING:
        parser.add_argument(flag, type=Path, required=True, metavar="DIR", help=text)
    elif isinstance(item.default, bool):
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
    else:
        parser.add_argument(
            flag,
            type=type(item.default),
            default=default,
            choices=item.metadata["choices"] or None,
            help=f"{text} (default: {item.default})",
        )


def run(args: argparse.Namespace) -> int:
    from extractor.extraction import extract
    from extractor.progress import ProgressDisplay, print_summary

    config = Config(**{item.name: getattr(args, item.name) for item in fields(Config)})
    given = {item.name: getattr(args, item.name) for item in fields(ReplicaOptions) if hasattr(args, item.name)}
    require_replicas(given.get("replicas", 0), given)
    options = ReplicaOptions(**given)
    if options.replicas:
        return _run_on_replicas(config, options, args.json)
    with ProgressDisplay() as display:
        summary = extract(config, display.update)
    if args.json:
        print(json.dumps(summary.as_json()))
    else:
        print_summary(summary)
    _say_how_it_ended(summary)
    return summary.exit_code


def _run_on_replicas(config: Config, options: ReplicaOptions, as_json: bool) -> int:
    from extractor.replicas.display import ReplicaDisplay, print_replica_summary
    from extractor.replicas.run import extract_on_replicas

    # Ray's own threads print news of dead nodes to stdout, which carries results alone.
    with ReplicaDisplay() as display, contextlib.redirect_stdout(sys.stderr):
        summary = extract_on_replicas(config, options, display.update)
    if as_json:
        print(json.dumps(summary.as_json()))
    else:
        print_replica_summary(summary)
    _say_how_it_ended(summary)
    return summary.exit_code


def _say_how_it_ended(summary: Summary) -> None:
    if summary.interrupted:
        print("stopped; whole samples are stored; run the same command again to continue", file=sys.stderr)
    elif not summary.samples and summary.already_stored:
        print(
            f"nothing to do: all is stored already, {counted(summary.already_stored, 'sample')}",
            file=sys.stderr,
        )
    if summary.already_stored:
        inspect = shell_command("extractor", "inspect", summary.store)
        print(f"counts and exit code are of this run; `{inspect}` counts all stored values", file=sys.stderr)
