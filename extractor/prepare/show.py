"""A look at samples for people: the text of each, coloured by part, underlined where it is trained on."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from extractor.prepare.assemble import Assembled
from extractor.prepare.containers import RecordFile
from extractor.prepare.options import PrepareOptions
from extractor.prepare.sources import find_sources
from extractor.prepare.tokens import Tokenizer
from extractor.prepare.work import Chunk, Outcome, Worker
from extractor.sizes import counted

_STYLES = {"prompt": "dim", "thinking": "magenta", "response": "green", "tool": "cyan"}


def show(options: PrepareOptions, count: int, console: Console | None = None) -> None:
    """Print the first samples of each source, `count` in all; records that give none are named with the reason."""
    console = console or Console(highlight=False)
    worker = Worker(options, buckets=1)
    console.print(_legend())
    sources = find_sources(options.data)
    streams = [_samples(options, worker, i, console) for i in range(len(sources))]
    shown = 0
    while streams and shown < count:
        stream = streams.pop(0)
        item = next(stream, None)
        if item is not None:
            name, sample = item
            console.rule(
                f"{name}: {counted(sample.token_ids.size, 'token')}, {int(sample.loss_mask.sum())} trained on",
                align="left",
            )
            console.print(coloured(sample, worker.tokenizer), soft_wrap=True)
            streams.append(stream)
            shown += 1


def _legend() -> Text:
    parts = [piece for kind, style in _STYLES.items() for piece in ((kind, style), ("  ", ""))]
    return Text.assemble(*parts, ("in the loss mask", "underline"))


def _samples(options: PrepareOptions, worker: Worker, number: int, console: Console) -> Iterator[tuple[str, Assembled]]:
    source = find_sources(options.data)[number]
    for index, file in enumerate(source.files):
        for raw in RecordFile(file.path, options.max_record_bytes):
            outcome = Outcome()
            name = f"{source.name}/{file.name} record {raw.number}"
            chunk = Chunk(number, index, source.entry, f"{source.name}/{file.name}", [raw])
            for _, samples in worker.samples(chunk, outcome):
                yield from ((name, sample) for sample in samples)
            for verdict in outcome.verdicts:
                console.print(
                    f"{name} {verdict.outcome}: {verdict.reason} ({verdict.detail})",
                    style="yellow",
                    markup=False,
                    highlight=False,
                )


def coloured(sample: Assembled, tokenizer: Tokenizer) -> Text:
    """The sample's text: colour tells the part, underline the mask."""
    text = Text()
    for kind, start, end in sample.segments:
        for a, b in _runs_of_mask(sample, start, end):
            trained = bool(sample.loss_mask[a])
            text.append(
                tokenizer.decode(sample.token_ids[a:b].tolist()),
                f"{_STYLES[kind]} underline" if trained else _STYLES[kind],
            )
    return text


def _runs_of_mask(sample: Assembled, start: int, end: int) -> Iterator[tuple[int, int]]:
    at = start
    for position in range(start + 1, end + 1):
        if position == end or sample.loss_mask[position] != sample.loss_mask[at]:
            yield at, position
            at = position
