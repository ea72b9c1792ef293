"""The command `speculators` with the backend `extractor` registered: python -m extractor.exports.speculators_train ...

A module apart from the backend's own, so that workers find the pickled classes under their importable name.
"""

from __future__ import annotations

import extractor.exports.speculators_backend  # noqa: F401 - registers the backend


def main() -> None:
    """Run speculators' command line."""
    from speculators.cli import app

    app()


if __name__ == "__main__":
    main()
