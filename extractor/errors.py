"""The errors that a person can act on; everything else is a bug and keeps its traceback.

A message says four things: what went wrong, what was found, what is allowed, and what to do.
"""

from __future__ import annotations

from typing import Self


class ExtractorError(ValueError):
    """Base of all errors caused by input, configuration or the machine. The command prints it on one line."""

    exit_code = 1

    @property
    def problem(self) -> str:
        """What is wrong, for a record that outlives the moment in which the advice held."""
        return str(self)

    def to_keep(self) -> Self:
        """The same without its traceback, which holds all variables on its way, and open files with them, until the
        garbage collector comes by."""
        return type(self)(*self.args)


class UsageError(ExtractorError):
    """The command or call itself is wrong: an option out of range, two options that exclude each other."""

    exit_code = 2


class InputError(ExtractorError):
    """A samples file, dataset or model folder that can't be used as it is."""


class StoreError(ExtractorError):
    """A store that can't be opened, read or written. The arguments: what is wrong, and where they are kept apart from
    it, the remedies, of which any will do."""

    @property
    def problem(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        remedies = " or ".join(map(str, self.args[1:]))
        return f"{self.problem}; {remedies}" if remedies else self.problem


class FingerprintError(StoreError):
    """A run whose configuration differs from the store's in something that changes the stored bytes."""


class CorruptError(StoreError):
    """Stored bytes that do not match their checksum, length or count."""


class DiskFullError(StoreError):
    """No room for what is about to be written. What is sealed is safe."""


class OpenFilesError(ExtractorError):
    """No further file may be opened. No StoreError: it says nothing about the store, which must not look smaller."""


class EngineError(ExtractorError):
    """The inference engine can't do what was asked, or failed while doing it."""


class ClusterError(ExtractorError):
    """A Ray cluster that is not there, lacks room, or whose nodes do not agree."""
