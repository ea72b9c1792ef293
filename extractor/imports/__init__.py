"""Other projects' hidden-state files as a store. Each module is one format; `job` reads them all."""

from extractor.imports.job import FORMATS, ImportSummary, import_folder
from extractor.imports.target import ImportOptions

__all__ = ["FORMATS", "ImportOptions", "ImportSummary", "import_folder"]
