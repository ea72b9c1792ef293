"""The store: `prepare_store` makes or resumes one, `ShardWriter` fills it, `Store` reads it."""

from extractor.store.missing import MissingSampleError
from extractor.store.options import WriterOptions, WriterReport
from extractor.store.preparation import prepare_store
from extractor.store.reader import Store
from extractor.store.sample import StoredSample
from extractor.store.writer import ShardWriter

__all__ = [
    "MissingSampleError",
    "ShardWriter",
    "Store",
    "StoredSample",
    "WriterOptions",
    "WriterReport",
    "prepare_store",
]
