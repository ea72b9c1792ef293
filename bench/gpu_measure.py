"""Times prepared work alone and beside a running matrix product. What fails or finds no time is named; others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from extractor.bench.gpu_report import NO_TIME, Measure, Over, said
from extractor.bench.gpu_speed import Plan
from extractor.bench.gpu_timing import Work, running_product

Prepared = list[tuple[Measure, Work]]


def measure(plans: Iterable[Plan], into: list[Measure], over: Over) -> None:
    """Time each plan's work alone, then each once more beside the product. `into` gets a row for each plan at once."""
    prepared: Prepared = []
    for name, make in plans:
        row = Measure(name, "GB/s")
        into.append(row)
        if over():
            row.left_out = NO_TIME
        else:
            attempt(row, lambda row=row, make=make: prepared.append((row, alone(row, make))))
    if prepared and not over():
        with running_product():
            for row, work in prepared:
                attempt(row, lambda row=row, work=work: loaded(row, work, over))


def alone(row: Measure, make: Callable[[], Work]) -> Work:
    work = make()
    taken = work.seconds()
    row.alone, row.us_each = work.nbytes / taken / 1e9, taken / work.parts * 1e6
    return work


def loaded(row: Measure, work: Work, over: Over) -> None:
    if not over():
        row.loaded = work.nbytes / work.seconds() / 1e9


def single(what: str, unit: str, value: Callable[[], float], into: list[Measure], over: Over) -> None:
    """One figure that is not a rate."""
    row = Measure(what, unit)
    into.append(row)
    if over():
        row.left_out = NO_TIME
    else:
        attempt(row, lambda: setattr(row, "alone", value()))


def attempt(row: Measure, run: Callable[[], object]) -> None:
    try:
        run()
    except Exception as error:
        row.failed = said(error)


def shares(rows: Iterable[Measure], ceiling: str, of: str) -> None:
    """Each row whose name starts with `of` as a share of the one called `ceiling`, where both were measured."""
    known = {row.what: row for row in rows}
    top = known[ceiling].alone if ceiling in known else None
    for row in known.values():
        if row.what.startswith(of) and row.alone is not None and top:
            row.share = row.alone / top
