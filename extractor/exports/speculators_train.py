"""The command `speculators` with the backend `extractor` registered: python -m extractor.exports.speculators_train ...

A module apart from the backend's own, so that workers find the pickled classes under their importable name.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run speculators' command line."""
    try:
        _register_backend()
        from speculators.cli import app
    except ModuleNotFoundError as error:
        sys.exit(
            f"the package {error.name} is missing, which speculators' trainer needs; pip install speculators==0.9.0 "
            "hs-connectors==0.9.0"
        )
    app()


def _register_backend() -> None:
    import extractor.exports.speculators_backend  # noqa: F401 - importing it registers it


if __name__ == "__main__":
    main()
