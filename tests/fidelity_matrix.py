"""`make fidelity`: run both matrices, every value against the reference, and write docs/fidelity.md.

    python tests/fidelity_matrix.py [NAME...]

With names, only those cases run and the others keep their last figures. Takes about 20 minutes on two cores.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import architectures
from engine_runs import EngineProcess, Reference, compare, make_samples
from fidelity_page import write_page
from scheduling import LAYERS, MODEL, SCHEDULING

from extractor.errors import ExtractorError

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build" / "fidelity.json"


def main(names: list[str]) -> int:
    cases = [*architectures.ARCHITECTURES, *SCHEDULING]
    unknown = set(names) - set(cases)
    if unknown:
        print(f"no such case: {', '.join(sorted(unknown))}; there are: {', '.join(cases)}", file=sys.stderr)
        return 2
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    RESULTS.parent.mkdir(exist_ok=True)
    for name in names or cases:
        results[name] = _timed(name)
        print(name, results[name], file=sys.stderr, flush=True)
        RESULTS.write_text(json.dumps(results, indent=1))
    write_page(ROOT / "docs" / "fidelity.md", results)
    return int(any(results[name]["state"] == "wrong" for name in names or cases))


def _timed(name: str) -> dict[str, Any]:
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fidelity-"))
    run = _architecture if name in architectures.ARCHITECTURES else _scheduling
    try:
        result = run(name, folder)
    except ExtractorError as error:
        result = {"state": "refused", "reason": str(error)}
    finally:
        shutil.rmtree(folder)
    return {**result, "seconds": round(time.monotonic() - started)}


def _architecture(name: str, folder: Path) -> dict[str, Any]:
    compute, refused = architectures.ARCHITECTURES[name].compute, architectures.ARCHITECTURES[name].refused
    model = architectures.save(name, folder / "model")
    samples = make_samples(folder / "samples.parquet")
    options = {"samples": samples, "model": model, "compute_dtype": compute, "token_budget": 64}
    options["allow_untested_engine"] = bool(refused)
    process = EngineProcess()
    try:
        # In the user's order with both ends, and EAGLE-3's own: 2, 3 and 4 stand for (2, n//2, n-3) of a deeper model.
        process.extract(**options, out=folder / "ends", layers=LAYERS, last=True)
        summary = process.extract(**options, out=folder / "eagle3", layers="2,3,4")
    finally:
        process.restart()
    reference = Reference(model, compute)
    result = _result(summary, [compare(folder / store, reference) for store in ("ends", "eagle3")])
    return {**result, "state": "refused", "reason": refused} if refused else result


def _scheduling(name: str, folder: Path) -> dict[str, Any]:
    case = SCHEDULING[name]
    model = architectures.save("llama", folder / "model", **MODEL)
    samples = make_samples(folder / "samples.parquet", case.lengths)
    options = {"samples": samples, "model": model, "out": folder / "store", **case.config()}
    process = EngineProcess()
    try:
        if case.interrupt:
            process.interrupt(**options)
        for rank in range(case.share_of):
            summary = process.extract(share=(rank, case.share_of), **options)
    finally:
        process.restart()
    compute = options.get("compute_dtype", "float32")
    return _result(summary, [compare(folder / "store", Reference(model, compute))])


def _result(summary: Any, figures: list[Any]) -> dict[str, Any]:
    worst = max(figures, key=lambda each: each.beyond)
    state = "wrong" if worst.beyond or summary.findings else "verified"
    parts = [asdict(each) for each in figures]
    return {
        "state": state,
        "samples": parts[0]["samples"],
        "elements": sum(part["elements"] for part in parts),
        "max_abs": max(part["max_abs"] for part in parts),
        "max_rel": max(part["max_rel"] for part in parts),
        "over_one_ulp": max(part["over_one_ulp"] for part in parts),
        "beyond": sum(part["beyond"] for part in parts),
        "worst": worst.worst,
        "restarts": summary.restarts,
        "already": summary.already_stored,
        "findings": summary.findings,
    }


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
