"""`extractor plan`: how much disk and how many hours, before anything runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from extractor.cli.numbers import at_least
from extractor.errors import UsageError
from extractor.sizes import counted

if TYPE_CHECKING:
    from extractor.budget.report import Plan

HELP = "say what a corpus will cost in disk and hours, and what each cap or drop would save"
EXAMPLE = (
    "extractor plan datasets/ --hidden-size 7168 --num-layers 61 --baseline 23.1M/19 "
    "--max-length 8192 --drop A1 --out store"
)
_SHOWN_REJECTS = 10
_WIDTH_OF_A_FILE = 160


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data",
        nargs="+",
        type=Path,
        metavar="DATA",
        help="folder of datasets (tokenized_data.jsonl), samples file, or file of token ids or lengths",
    )
    _add_model(parser)
    _add_choices(parser)
    _add_rates(parser)
    _add_disk(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw cost by source and cap (needs matplotlib)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what a token weighs")
    group.add_argument("--model", type=Path, metavar="DIR", help="Hugging Face model folder; config.json suffices")
    group.add_argument("--hidden-size", type=at_least(1), metavar="H", help="in place of --model, with --num-layers")
    group.add_argument("--num-layers", type=at_least(1), metavar="N", help="in place of --model, with --hidden-size")
    group.add_argument("--layers", default="eagle3", metavar="IDS", help="'eagle3' or layer ids such as 2,30,58")
    group.add_argument("--last", action="store_true", help="also keep the last layer before the final norm")


def _add_choices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is kept")
    group.add_argument("--max-length", type=int, metavar="TOKENS", help="cut each sample to its first TOKENS tokens")
    group.add_argument("--caps", metavar="LIST", help="caps to compare (default 4096,8192,12288,16384)")
    group.add_argument("--drop", action="append", default=[], metavar="SOURCE", help="leave a source out; repeatable")
    group.add_argument(
        "--take", action="append", default=[], metavar="SOURCE=K", help="keep K samples drawn by --seed; repeatable"
    )
    group.add_argument("--seed", type=int, default=0, help="seed of --take and --calibrate (default 0)")


def _add_rates(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how fast it goes")
    group.add_argument("--baseline", metavar="TOKENS/HOURS", help="what a past run did, such as 23.1M/19")
    group.add_argument("--rate", metavar="TOKENS_PER_S", help="tokens per second, such as 338 or 30k")
    group.add_argument(
        "--calibrate",
        type=int,
        metavar="K",
        help="time a real extraction of K samples with --model on this machine",
    )
    group.add_argument(
        "--repeats", type=at_least(1), default=3, metavar="N", help="timed runs of --calibrate (default 3)"
    )
    group.add_argument("--engine", choices=("vllm", "transformers"), default="vllm", help="engine of --calibrate")
    group.add_argument("--tp", type=at_least(1), default=1, metavar="N", help="tensor-parallel ranks of --calibrate")
    group.add_argument(
        "--replicas",
        type=int,
        default=1,
        metavar="N",
        help="engines that share the job; rates given are of one of them",
    )
    group.add_argument("--like", type=Path, metavar="STORE", help="as fast, and as compressible, as this store's runs")


def _add_disk(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("whether it fits")
    group.add_argument("--out", type=Path, metavar="DIR", help="where the store will lie")
    group.add_argument(
        "--codec", choices=("none", "shuffle-zstd"), default="none", help="codec of the store (default none)"
    )
    group.add_argument(
        "--look",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="where to look for existing stores (default: the filesystem of --out); repeatable",
    )
    group.add_argument("--stores", action="store_true", help="list every store found, not only those that matter")


def run(args: argparse.Namespace) -> int:
    from extractor.planning import CAPS, PlanConfig, plan

    config = PlanConfig(
        data=tuple(args.data),
        model=args.model,
        hidden_size=args.hidden_size,
        num_layers=args.num_layers,
        layers=args.layers,
        last=args.last,
        max_length=args.max_length,
        caps=CAPS if args.caps is None else _integers(args.caps),
        drop=tuple(args.drop),
        take=_counts(args.take),
        seed=args.seed,
        baseline=args.baseline,
        rate=args.rate,
        calibrate=args.calibrate,
        repeats=args.repeats,
        engine=args.engine,
        tp=args.tp,
        replicas=args.replicas,
        like=args.like,
        codec=args.codec,
        out=args.out,
        look=tuple(args.look),
        plot=args.plot,
    )
    result = plan(config)
    _show(result, args.json, args.stores)
    return result.exit_code


def _show(result: Plan, as_json: bool, every_store: bool) -> None:
    if as_json:
        print(json.dumps(result.as_json(), indent=1))
    else:
        _print_tables(result, every_store)
    _print_rejects(result)


def _print_tables(result: Plan, every_store: bool) -> None:
    from rich.console import Console

    from extractor.budget.tables import tables

    Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE, highlight=False).print(tables(result, every_store))


def _print_rejects(result: Plan) -> None:
    if not result.rejected_records:
        return
    print(
        f"not in the plan, for want of a usable length: {counted(result.rejected_records, 'record')}", file=sys.stderr
    )
    for reject in result.rejects[:_SHOWN_REJECTS]:
        print(f"  {reject}", file=sys.stderr)
    if result.rejected_records > _SHOWN_REJECTS:
        named = len(result.rejects)
        print(
            f"  and {result.rejected_records - _SHOWN_REJECTS:,} more; --json names the first {named:,}",
            file=sys.stderr,
        )


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--caps {text!r} is not a list of integers; give one such as 4096,8192") from None


def _counts(items: Sequence[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in items:
        source, equals, count = item.rpartition("=")
        if not equals or not source or not count.strip().isdecimal():
            raise UsageError(f"--take {item!r} is not SOURCE=K; give one such as A1=500")
        counts[source] = int(count)
    if len(counts) < len(items):
        raise UsageError(f"--take names a source twice ({', '.join(items)}); name each once")
    return counts
