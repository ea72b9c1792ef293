"""Reading a part from here, or through Ray from the host that holds it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Any, Protocol

from extractor.errors import ClusterError
from extractor.store.part_files import delete_part, empty_part, list_part, part_checksum, read_part
from extractor.store.parts import Part

_CHUNK_BYTES = 16 << 20
_CHUNKS_AHEAD = 4
_ANSWER_SECONDS = 120.0
_CHECKSUM_SECONDS = 3600.0  # of a 256 GiB shard at 75 MB/s


class PartSource(Protocol):
    """What `gather` needs of a part."""

    def shards(self, fingerprint: str, without: Collection[str]) -> list[tuple[str, int]]: ...

    def chunks(self, shard: str, start: int, size: int) -> Iterator[bytes]:
        """Bytes `start` .. `size` - 1 of the shard's data file, in order."""
        ...

    def checksum(self, shard: str) -> str: ...

    def empty(self) -> None: ...

    def delete(self) -> None: ...


class LocalPart:
    """A part that can be seen from here."""

    def __init__(self, part: Part) -> None:
        self._path = part.path

    def shards(self, fingerprint: str, without: Collection[str]) -> list[tuple[str, int]]:
        return list_part(self._path, fingerprint, without)

    def chunks(self, shard: str, start: int, size: int) -> Iterator[bytes]:
        for offset in range(start, size, _CHUNK_BYTES):
            yield read_part(self._path, shard, offset, min(_CHUNK_BYTES, size - offset))

    def checksum(self, shard: str) -> str:
        return part_checksum(self._path, shard)

    def empty(self) -> None:
        empty_part(self._path)

    def delete(self) -> None:
        delete_part(self._path)


class RemotePart:
    """A part on another host of the Ray cluster: tasks pinned there read it, Ray carries the bytes and retries."""

    def __init__(self, part: Part) -> None:
        """Raises ClusterError when the host is not in the cluster."""
        from extractor.replicas.cluster import run_on_host, task_on_host

        self._host, self._path = part.host, part.path
        self._call = run_on_host
        self._read = task_on_host(part.host, read_part)

    def shards(self, fingerprint: str, without: Collection[str]) -> list[tuple[str, int]]:
        return list(self._call(self._host, list_part, self._path, fingerprint, without, timeout=_ANSWER_SECONDS))

    def chunks(self, shard: str, start: int, size: int) -> Iterator[bytes]:
        ahead: deque[Any] = deque()
        for offset in range(start, size, _CHUNK_BYTES):
            ahead.append(self._read.remote(self._path, shard, offset, min(_CHUNK_BYTES, size - offset)))
            if len(ahead) > _CHUNKS_AHEAD:
                yield self._arrived(ahead.popleft())
        while ahead:
            yield self._arrived(ahead.popleft())

    def checksum(self, shard: str) -> str:
        return str(self._call(self._host, part_checksum, self._path, shard, timeout=_CHECKSUM_SECONDS))

    def empty(self) -> None:
        self._call(self._host, empty_part, self._path, timeout=_CHECKSUM_SECONDS)

    def delete(self) -> None:
        self._call(self._host, delete_part, self._path, timeout=_CHECKSUM_SECONDS)

    def _arrived(self, ref: Any) -> bytes:
        import ray
        from ray.exceptions import RayError

        try:
            data: bytes = ray.get(ref, timeout=_ANSWER_SECONDS)
        except (RayError, TimeoutError) as error:
            raise ClusterError(f"host {self._host} stopped answering: {error}; run the same command again") from error
        return data


def source_of(part: Part) -> PartSource:
    return LocalPart(part) if part.visible else RemotePart(part)
