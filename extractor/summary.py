"""What a run did: the summary that `extract` returns, and the files under `runs/` that outlive it."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from extractor.config import Config
from extractor.engines.job import Job, Progress
from extractor.output import write_whole
from extractor.warm_up import steady_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What one call of `extract` did. `tokens_per_s` counts from the first sample to the last seal, without the
    engine's start; `steady_tokens_per_s` leaves out the warm-up, the first steps of each rank, too. `restarts`: samples
    that the engine preempted and computed again. `findings` counts what the detectors and the canary found, by sample,
    layer and kind, listed in `findings_file`."""

    store: Path
    run_id: str
    samples: int
    tokens: int
    bytes: int
    seconds: float
    tokens_per_s: float
    stalled_seconds: float
    already_stored: int
    restarts: int = 0
    saturated: int
    inf: int
    nan: int
    findings: int
    findings_file: Path | None
    interrupted: bool
    warm_up_tokens: int = 0
    warm_up_seconds: float = 0.0

    @property
    def steady_tokens_per_s(self) -> float:
        return steady_rate(self.tokens, self.seconds, self.warm_up_tokens, self.warm_up_seconds)

    @property
    def exit_code(self) -> int:
        """130 interrupted, 3 done but with findings, 0 done."""
        if self.interrupted:
            return 130
        return 3 if self.findings else 0

    def as_json(self) -> dict[str, Any]:
        return {name: str(v) if isinstance(v, Path) else v for name, v in asdict(self).items()}


def summarize(
    config: Config,
    job: Job,
    ranks: list[dict[str, Any]],
    canary: list[dict[str, Any]],
    *,
    seconds: float,
    already: int,
    interrupted: bool,
) -> Summary:
    """Add up the ranks' last statuses; writes the findings file when there are findings, those of the canary too."""
    progress = Progress.of_ranks(ranks)
    findings = [*(finding for rank in ranks for finding in rank["findings"]), *canary]
    return Summary(
        store=config.out,
        run_id=job.run_id,
        samples=progress.samples,
        tokens=progress.tokens,
        bytes=progress.tokens * job.row_bytes,
        seconds=seconds,
        tokens_per_s=progress.tokens / seconds,
        stalled_seconds=progress.stalled_seconds,
        already_stored=already,
        restarts=sum(rank["restarts"] for rank in ranks),
        saturated=_elements(findings, "saturated"),
        inf=_elements(findings, "inf"),
        nan=_elements(findings, "nan"),
        findings=len(findings),
        findings_file=_write_findings(job, findings),
        interrupted=interrupted,
        warm_up_tokens=progress.warm_up_tokens,
        warm_up_seconds=progress.warm_up_seconds,
    )


def nothing_to_do(store: Path, stored: int) -> Summary:
    """Summary of a run that found every sample stored."""
    return Summary(
        store=store,
        run_id="",
        samples=0,
        tokens=0,
        bytes=0,
        seconds=0.0,
        tokens_per_s=0.0,
        stalled_seconds=0.0,
        already_stored=stored,
        saturated=0,
        inf=0,
        nan=0,
        findings=0,
        findings_file=None,
        interrupted=False,
    )


def write_run_record(config: Config, job: Job, summary: Summary, wanted: int) -> None:
    """`runs/<run_id>.json`: the rate this machine reached, and with what; a later plan can start from it. `wanted`: the
    samples of the samples file."""
    record = {
        **summary.as_json(),
        "steady_tokens_per_s": summary.steady_tokens_per_s,
        "wanted": wanted,
        "engine": config.engine,
        "tp": config.tp,
        "row_bytes": job.row_bytes,
        "machine": platform.node(),
        "config": config.as_json(),
    }
    write_whole(job.store / "runs" / f"{job.run_id}.json", (json.dumps(record, indent=1) + "\n").encode())


def _elements(findings: list[dict[str, Any]], kind: str) -> int:
    return sum(finding["count"] for finding in findings if finding["kind"] == kind)


def _write_findings(job: Job, findings: list[dict[str, Any]]) -> Path | None:
    if not findings:
        return None
    path = job.store / "runs" / f"{job.run_id}.findings.jsonl"
    write_whole(path, "".join(json.dumps(finding) + "\n" for finding in findings).encode())
    return path
