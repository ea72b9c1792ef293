"""A store in the file formats of other trainers. Each module is one format; `job` writes them all."""

from extractor.exports.job import FORMATS, ExportOptions, ExportSummary, export_store

__all__ = ["FORMATS", "ExportOptions", "ExportSummary", "export_store"]
