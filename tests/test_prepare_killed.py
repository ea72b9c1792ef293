"""A `prepare` that is killed with its workers busy: the earlier files stay, and no worker outlives it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prepare_cases import chat, write_jsonl


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_files_stay_and_workers_end(tmp_path: Path, tiny_tokenizer_dir: Path, sent: signal.Signals) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "samples.parquet").write_text("earlier")
    data = write_jsonl(tmp_path / "d.jsonl", (chat(f"q {i} " + "w " * 200, "a " * 200) for i in range(20_000)))
    command = [sys.executable, "-B", "-m", "extractor", "prepare", str(data), "--workers", "2"]
    command += ["--tokenizer", str(tiny_tokenizer_dir), "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while not has_spilled(tmp_path / "out"):
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.05)
        process.send_signal(sent)
        # Returns when the last worker has closed the stderr that it inherited; one that stays would never.
        process.communicate(timeout=60)
    assert process.returncode == (130 if sent == signal.SIGINT else -sent)
    assert (tmp_path / "out" / "samples.parquet").read_text() == "earlier"


def has_spilled(out: Path) -> bool:
    return any(bucket.stat().st_size for bucket in out.glob(".prepare-*/bucket-*"))
