"""The run that the faults hit: forty samples of every size, and what must hold of the store afterwards."""

from __future__ import annotations

import functools

import numpy as np
from store_samples import a_manifest, rows_of, seal

from extractor.store import ShardWriter, Store, WriterOptions

MANIFEST = a_manifest()
OPTIONS = WriterOptions(
    tile_bytes=4096, group_bytes=32768, turn_bytes=16384, buffer_bytes=65536, lanes=2, commit_seconds=0.005
)


@functools.cache
def samples():
    """{id: rows}; from one row to some twenty tiles."""
    return {f"s{i:02}": rows_of(i, 1 + (i * 37) % 400, MANIFEST) for i in range(40)}


def write_missing(path, run_id, acknowledge=lambda names: None, options=OPTIONS):
    """Write what the store lacks. `acknowledge` gets the ids that a flush made durable."""
    there = set(Store.open(path))
    missing = {name: rows for name, rows in samples().items() if name not in there}
    with ShardWriter(path, run_id=run_id, writer=0, options=options) as writer:
        sealed = []
        for name, rows in missing.items():
            for start in range(0, len(rows), 50):
                writer.write_rows(name, start, rows[start : start + 50])
            seal(writer, name, rows)
            sealed.append(name)
            if len(sealed) == 5:
                writer.flush()
                acknowledge(sealed)
                sealed = []
    acknowledge(sealed)


def assert_whole(store, acknowledged=()):
    """Every acknowledged sample is there, and every sample that is there is the right one, bit for bit."""
    lost = set(acknowledged) - set(store)
    assert not lost, f"acknowledged and lost: {sorted(lost)}"
    for name, sample in store.items():
        want = samples()[name]
        np.testing.assert_array_equal(sample.hidden_states.view(np.uint16), want.view(np.uint16), err_msg=name)
        np.testing.assert_array_equal(sample.token_ids, np.arange(len(want)))
