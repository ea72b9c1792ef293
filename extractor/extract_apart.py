"""`extract` in a process of its own, for a program that has joined a launcher's process group.

vLLM makes torch.distributed's default group its own: it would take the launcher's ranks for its ranks, and destroy
their group in the end. The new process starts from this file; neither it nor vLLM's ranks import the program again.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from extractor.config import Config
from extractor.errors import EngineError, ExtractorError
from extractor.summary import Summary

# vLLM starts ranks of its own and takes torchrun's variables for theirs.
_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def extract_apart(config: Config) -> Summary:
    """As `extract(config)`, with its errors. It stops, with whole samples stored, when this process dies."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        process = subprocess.Popen(
            [sys.executable, "-m", "extractor.extract_apart", answer],
            stdin=subprocess.PIPE,
            env=_environment(),
            process_group=0,  # a terminal's Ctrl-C is for us to pass on: twice would be a second one
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(config.as_json()).encode() + b"\n")
        process.stdin.flush()
        try:
            process.wait()
        finally:
            process.stdin.close()  # after an interrupt it finishes its step and seals
            process.wait()
        return _read(answer, process.returncode)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _LAUNCHER_VARIABLES}
    package = str(Path(__file__).resolve().parents[1])
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, (package, kept.get("PYTHONPATH"))))}


def _read(answer: Path, code: int) -> Summary:
    if not answer.exists():
        raise EngineError(
            f"the process of the extraction ended with code {code} and no answer (killed for memory?); what is sealed "
            "is safe; run the same command again to continue"
        )
    outcome = pickle.loads(answer.read_bytes())  # written by our own process into our own folder
    if isinstance(outcome, Summary):
        return outcome
    raise outcome


def main() -> None:
    config = Config(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_interrupt_at_end_of_input, daemon=True).start()
    answer = Path(sys.argv[1])
    whole = answer.with_suffix(".new")
    whole.write_bytes(pickle.dumps(_outcome(config)))
    whole.replace(answer)


def _outcome(config: Config) -> Summary | ExtractorError:
    from extractor.extraction import extract

    try:
        return extract(config)
    except ExtractorError as error:
        return type(error)(str(error))


def _interrupt_at_end_of_input() -> None:
    """The parent holds the other end of stdin for as long as it lives and wants an answer."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main()
