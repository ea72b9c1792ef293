"""One chunk of records -> packed samples and verdicts. Runs in every worker process; what it gives depends on the chunk
alone, so neither the number of workers nor their order shows in the output."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from extractor.prepare.assemble import Assembled, Assembler
from extractor.prepare.capping import capped
from extractor.prepare.conversation import Conversation, RawText, TokenRecord
from extractor.prepare.idrecords import IdReader
from extractor.prepare.jsontext import Raw, parse
from extractor.prepare.options import PrepareOptions
from extractor.prepare.orphans import end_with_parent
from extractor.prepare.recipe import Entry
from extractor.prepare.reject import Reject
from extractor.prepare.shapes import parse_record
from extractor.prepare.spill import Place, bucket_of, pack, shuffle_key
from extractor.prepare.template import Template
from extractor.prepare.tokens import Encoded, Tokenizer, load_tokenizer
from extractor.prepare.turns import Rendered, render_conversation, render_raw

MASK_ASSUMED = "mask_assumed"  # ids without mask, parts or turns: every token is trained on


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive records of one file; `source` and `file` are numbers."""

    source: int
    file: int
    entry: Entry
    where: str
    records: list[Raw]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A record that gave no sample: `outcome` is "rejected" or "dropped"."""

    outcome: str
    number: int
    offset: int | None
    reason: str
    detail: str


@dataclass(slots=True)
class Outcome:
    """What became of a chunk. `packed` maps buckets to samples, `repairs` counts records by applied rule."""

    packed: dict[int, bytes] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    repairs: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Pending:
    """A record on its way: what it renders to, or the ids it carries."""

    raw: Raw
    rendered: list[Rendered] = field(default_factory=list)
    given: list[TokenRecord] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)


class Worker:
    """Holds the tokenizer and everything derived from it; loading takes a second, so it is done once a process."""

    def __init__(self, options: PrepareOptions, buckets: int, tokenizer: Tokenizer | None = None) -> None:
        self._options = options
        self._buckets = buckets
        self.tokenizer = tokenizer or load_tokenizer(
            options.tokenizer, options.chat_template, options.trust_remote_code
        )
        self.template = Template(self.tokenizer, options.lacking)
        abilities = self.template.abilities
        self._reader = IdReader(self.tokenizer, abilities)
        self._assembler = Assembler(self.tokenizer, self._reader, abilities.turn_tokens, options.train_on)

    def run(self, chunk: Chunk) -> Outcome:
        outcome = Outcome()
        packed: defaultdict[int, list[bytes]] = defaultdict(list)
        for pending, samples in self.samples(chunk, outcome):
            outcome.repairs.update(set(pending.repairs))
            for part, sample in enumerate(samples):
                place = Place(chunk.source, chunk.file, pending.raw.number, part, len(samples))
                key = shuffle_key(sample.token_ids, self._options.seed)
                packed[bucket_of(key, self._buckets)].append(pack(sample, place, key))
        outcome.packed = {bucket: b"".join(data) for bucket, data in packed.items()}
        return outcome

    def samples(self, chunk: Chunk, outcome: Outcome) -> list[tuple[_Pending, list[Assembled]]]:
        """The samples of each record that gives any; the other records get verdicts in `outcome`."""
        rendered = []
        for raw in chunk.records:
            try:
                rendered.append(self._render(raw, chunk.entry))
            except Reject as reject:
                outcome.verdicts.append(_verdict(raw, reject))
        done = self._tokenize(rendered, chunk, outcome)
        outcome.verdicts.sort(key=lambda verdict: verdict.number)
        return done

    def _render(self, raw: Raw, entry: Entry) -> _Pending:
        pending = _Pending(raw)
        for record in parse_record(_mapped(parse(raw), entry.field_map), _format(entry, self._options)):
            if isinstance(record, TokenRecord):
                pending.given.append(record)
            else:
                pending.rendered += self._render_one(record)
                pending.repairs += record.repairs
        for sample in pending.rendered:
            _check_text(sample.text)
        return pending

    def _render_one(self, record: Conversation | RawText) -> list[Rendered]:
        if isinstance(record, RawText):
            return render_raw(record, self.template)
        return render_conversation(record, self.template, self._options.turns)

    def _tokenize(
        self, rendered: list[_Pending], chunk: Chunk, outcome: Outcome
    ) -> list[tuple[_Pending, list[Assembled]]]:
        runs_of_all = [run for pending in rendered for sample in pending.rendered for run in sample.runs]
        several = [len(run.parts) > 1 for run in runs_of_all]
        encoded = iter(self.tokenizer.encode([run.text for run in runs_of_all], several))
        done = []
        for pending in rendered:
            runs = [[next(encoded) for _ in sample.runs] for sample in pending.rendered]
            try:
                done.append((pending, self._assemble(pending, runs, chunk)))
            except Reject as reject:
                outcome.verdicts.append(_verdict(pending.raw, reject))
        return done

    def _assemble(self, pending: _Pending, runs: list[list[Encoded]], chunk: Chunk) -> list[Assembled]:
        samples = [self._assembler.from_text(s, r) for s, r in zip(pending.rendered, runs, strict=True)]
        samples += [self._assembler.from_ids(record) for record in pending.given]
        if any(map(self._reader.trains_everywhere, pending.given)):
            pending.repairs.append(MASK_ASSUMED)
        where = f"record {pending.raw.number} of {chunk.where}"
        return capped(samples, self._options, chunk.entry.max_length, where)


def _verdict(raw: Raw, reject: Reject) -> Verdict:
    return Verdict(reject.outcome, raw.number, raw.offset, reject.reason, reject.detail)


def _format(entry: Entry, options: PrepareOptions) -> str:
    return options.data_format if entry.data_format == "auto" else entry.data_format


def _mapped(record: Any, field_map: dict[str, str]) -> Any:
    """The record with the recipe's fields under our names; dots step into objects."""
    if not field_map or not isinstance(record, dict):
        return record
    mapped = dict(record)
    for ours, path in field_map.items():
        value: Any = record
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        mapped[ours] = value
    return mapped


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Reject("lone_surrogate", f"U+{ord(text[error.start]):04X} in a text") from None


_worker: Worker | None = None


def start_worker(options: PrepareOptions, buckets: int) -> None:
    """Initialize this process."""
    end_with_parent()
    global _worker
    _worker = Worker(options, buckets)


def run_chunk(chunk: Chunk) -> Outcome:
    """Handle a chunk in a process initialized by `start_worker`."""
    assert _worker is not None
    return _worker.run(chunk)
