"""The kernels of `gather_rows`; its definition is gather_rows_ref."""

from extractor.kernels.gather_ref import gather_rows_ref

__all__ = ["gather_rows_ref"]
