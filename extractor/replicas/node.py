"""What must be alike on all nodes of a run, and finding out whether it is."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Iterable
from pathlib import Path

import extractor
from extractor.config import Config
from extractor.engines.load import engine_version
from extractor.errors import ClusterError, ExtractorError
from extractor.model_info import ModelInfo
from extractor.replicas.messages import NodeReport
from extractor.weights import weights_hash

CLOCK_TOLERANCE_SECONDS = 30.0


def versions(config: Config) -> dict[str, str]:
    """What decides stored bytes on a node. Raises ExtractorError kinds when model or engine are missing."""
    info = ModelInfo.from_dir(config.model)
    info.require_weights()
    return {
        "extractor": f"{extractor.__version__} (source {_source_hash()})",
        "engine": engine_version(config.engine),
        "model config": info.config_hash,
        "tokenizer": info.tokenizer_hash,
        "model weights": weights_hash(config.model),
    }


def inspect_node(config: Config, node_id: str, token: Path | None, shard_dir: str) -> NodeReport:
    """Look at this node. `token`: a file of the driver's in the shared store, answered by one beside it."""
    found: dict[str, str] = {}
    folder, problem = None, None
    try:
        found = versions(config)
        folder = _shard_folder(shard_dir) if shard_dir else None
    except (ExtractorError, OSError) as error:
        problem = str(error)
    return NodeReport(
        host=platform.node(),
        node_id=node_id,
        pid=os.getpid(),
        clock=time.time(),
        versions=found,
        shard_dir=folder,
        sees_token=token is None or _answer(token),
        problem=problem,
    )


def check_node(report: NodeReport, expected: dict[str, str], sent: float, received: float) -> None:
    """Raise ClusterError naming the node when it can't take part; `sent` and `received` enclose its clock's reading."""
    where = f"node {report.host} ({report.node_id[:8]})"
    if report.problem:
        raise ClusterError(f"{where} can't take part: {report.problem}")
    different = [(name, report.versions.get(name), want) for name, want in expected.items()]
    for name, got, want in different:
        if got != want:
            raise ClusterError(
                f"{where} has another {name} than the driver: {got} there, {want} here; install the same on all nodes"
            )
    ahead = max(report.clock - received, 0.0) - max(sent - report.clock, 0.0)
    if abs(ahead) > CLOCK_TOLERANCE_SECONDS:
        raise ClusterError(
            f"the clock of {where} is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}; at most "
            f"{CLOCK_TOLERANCE_SECONDS:.0f} s are allowed, or logs and run ids can't be put in order; set it by NTP"
        )
    if not report.sees_token:
        raise ClusterError(
            f"{where} does not see the store that the driver sees under the same path; put --out on storage that all "
            "nodes share, or let them write to their own disks with --shard-dir"
        )


def require_answer(token: Path, report: NodeReport) -> None:
    """Raise ClusterError unless the node's answer arrived in the driver's view of the store."""
    if not _answer_file(token, report.host, report.pid).exists():
        raise ClusterError(
            f"node {report.host} ({report.node_id[:8]}) reads the store but what it writes does not arrive here; mount "
            "--out writable and with close-to-open consistency on all nodes, or use --shard-dir"
        )


def remove_tokens(token: Path) -> None:
    """The driver's file and all answers."""
    for file in token.parent.glob(token.name + "*"):
        file.unlink(missing_ok=True)


def _answer(token: Path) -> bool:
    if not token.exists():
        return False
    try:
        _answer_file(token, platform.node(), os.getpid()).touch()
    except OSError:
        return True  # it is seen; that no answer arrives says the rest
    return True


def _answer_file(token: Path, host: str, pid: int) -> Path:
    return token.with_name(f"{token.name}.{host}.{pid}")


def _shard_folder(text: str) -> Path:
    """`--shard-dir` with this node's environment variables and home put in, made and tried."""
    folder = Path(os.path.expanduser(os.path.expandvars(text)))
    if not folder.is_absolute() or "$" in str(folder):
        raise ClusterError(
            f"--shard-dir {text} is {folder} here, which is no absolute path; set its variables on all nodes"
        )
    folder.mkdir(parents=True, exist_ok=True)
    trial = folder / f".trial-{os.getpid()}"
    trial.touch()
    trial.unlink()
    return folder


def _source_hash() -> str:
    root = Path(extractor.__file__).parent
    return _hash_files(sorted(root.rglob("*.py")), root)


def _hash_files(files: Iterable[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:8]
