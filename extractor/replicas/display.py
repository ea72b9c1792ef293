"""One picture of all replicas on stderr, and the summary on stdout."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from extractor.progress import print_summary, time_left
from extractor.replicas.summary import ReplicaSummary
from extractor.shell import shell_command
from extractor.sizes import counted
from extractor.summary import Summary

if TYPE_CHECKING:
    from extractor.replicas.status import Status

_LINE_SECONDS = 5.0


class ReplicaDisplay:
    """A bar and a row for each replica on a terminal; elsewhere a line every few seconds."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._last_line = -_LINE_SECONDS

    def __enter__(self) -> ReplicaDisplay:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=2, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, status: Status) -> None:
        now = time.monotonic()
        if self._live is not None:
            bar = ProgressBar(total=status.total_tokens, completed=status.tokens)
            self._live.update(Group(headline(status), bar, replica_table(status)))
        elif now - self._last_line >= _LINE_SECONDS or status.tokens == status.total_tokens:
            self._last_line = now
            print(f"{headline(status)}; {replica_line(status)}", file=sys.stderr)


def headline(status: Status) -> str:
    """`12/40 samples, 3000/9000 tokens, 500 tokens/s, 0.001 GB/s, 1 deaths, 2 leases returned, 0:00:12 left`."""
    left = time_left(status.total_tokens - status.tokens, status.tokens / status.seconds if status.seconds else 0.0)
    return (
        f"{status.samples}/{status.total_samples} samples, {status.tokens}/{status.total_tokens} tokens, "
        f"{status.tokens_per_s:,.0f} tokens/s, {status.gb_per_s:.3f} GB/s, {status.deaths} deaths, "
        f"{status.leases_returned} leases returned, {left}"
    )


def replica_line(status: Status) -> str:
    """Each replica in a word: `r0 1,200/s, r1 loading`."""
    return ", ".join(
        f"r{m.number} {f'{m.tokens_per_s:,.0f}/s' if m.state == 'working' else m.state}" for m in status.members
    )


def replica_table(status: Status) -> Table:
    table = Table("replica", "host", "state", box=None)
    for name in ("tokens", "tokens/s", "stalled", "leases", "deaths"):
        table.add_column(name, justify="right")
    for m in status.members:
        stalled = m.stalled_seconds / m.seconds if m.seconds else 0.0
        figures = (f"{m.tokens:,}", f"{m.tokens_per_s:,.0f}", f"{stalled:.1%}", str(m.leases), str(m.failures))
        table.add_row(f"r{m.number}", m.host, str(m.state), *figures)
    return table


def print_replica_summary(summary: Summary) -> None:
    """The table of every run, then one row for each replica where any was started."""
    print_summary(summary)
    if isinstance(summary, ReplicaSummary):
        _print_replicas(summary)


def _print_replicas(summary: ReplicaSummary) -> None:
    table = Table("replica", "host", title="replicas", title_justify="left")
    for name in ("samples", "tokens", "tokens/s", "leases", "lives"):
        table.add_column(name, justify="right")
    table.add_column("retired or last lost because")
    for r in summary.replicas:
        reason = f"{'retired: ' if r.retired else ''}{r.reason}" or "-"
        figures = (f"{r.samples:,}", f"{r.tokens:,}", f"{r.tokens_per_s:,.0f}", str(r.leases), str(r.lives))
        table.add_row(f"r{r.number}", r.host, *figures, reason)
    Console().print(table)
    for warning in warnings_of(summary):
        print(warning, file=sys.stderr)


def warnings_of(summary: ReplicaSummary) -> list[str]:
    """What a person must know although the job is done."""
    found = [f"replica {r.number} on {r.host} was retired: {r.reason}" for r in summary.retired]
    gather = shell_command("extractor", "gather", summary.store)
    found += [f"shards lie in {place}; collect them with `{gather}`" for place in summary.elsewhere]
    if summary.unconfirmed:
        found.append(
            f"out of reach, on hosts that have left the cluster: {counted(summary.unconfirmed, 'sample')}; bring them "
            "back, or run the same "
            "command again with --recompute-lost"
        )
    return found
