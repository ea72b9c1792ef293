"""speculators' trainer straight from a store: nothing is exported but the small Arrow data set.

    extractor export store/ --to speculators --index-only --out data/
    python -m extractor.exports.speculators_train train --hidden-states-backend extractor \\
        --hidden-states-path store/ --data-path data/ ...

Importing this module registers the backend `extractor`; it has to happen before speculators reads its registry, hence
the command above in place of `speculators train`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hs_connectors import HiddenStatesBackend, HiddenStatesTransfer

from extractor.contract import require_last
from extractor.errors import StoreError, UsageError
from extractor.shell import shell_command
from extractor.store import Store

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class StoreTransfer(HiddenStatesTransfer):  # type: ignore[misc]
    """Row i of the Arrow data set -> the store's sample of that row's `sample_id`. Checksums are verified. Pickles by
    path, so that spawned workers open the store themselves."""

    def __init__(self, store: Path | str, data_path: Path | str) -> None:
        """Raises StoreError when the store lacks the last state, UsageError when the data set was not made from one."""
        import datasets

        self._store = Store.open(store, check=True)
        require_last(self._store.manifest, "speculators' trainer")
        rows = datasets.load_from_disk(str(data_path))
        if "sample_id" not in rows.column_names:
            export = ("extractor", "export", store, "--to", "speculators", "--index-only", "--out", data_path)
            raise UsageError(
                f"{data_path} has no column sample_id, so its rows can't be found in a store; make it with "
                f"`{shell_command(*export)}`"
            )
        self._ids: list[str] = list(rows.with_format(None)["sample_id"])

    def get_cached(self, file_idx: int) -> dict[str, torch.Tensor] | None:
        """token_ids int64 [T], hidden_states [T, A + 1, H]; None for a sample that the store does not hold."""
        sample = self._store.get(self._ids[file_idx])
        if sample is None:
            return None
        ids = self._store.manifest.layer_ids
        states = torch.from_numpy(sample.hidden_states.view(np.uint16)).view(_DTYPES[self._store.manifest.dtype])
        if list(ids) != sorted(ids):
            states = states[:, np.argsort(ids).tolist()]
        return {"token_ids": torch.from_numpy(sample.token_ids).long(), "hidden_states": states}

    def get_generated(self, hs_transfer_params: dict[str, Any]) -> dict[str, torch.Tensor] | None:
        raise StoreError(
            "a store can't take states that the trainer generates itself; extract the missing samples with `extractor "
            "extract`, or pass --on-missing skip, warn or raise"
        )


@HiddenStatesBackend.register("extractor")
class StoreBackend(HiddenStatesBackend):  # type: ignore[misc]
    """The store's folder comes with --hidden-states-path, which the file backend brings along."""

    @staticmethod
    def add_train_args(parser: argparse.ArgumentParser) -> None:
        """None of its own."""

    @staticmethod
    def add_launch_args(parser: argparse.ArgumentParser) -> None:
        """None of its own."""

    @staticmethod
    def from_train_args(args: argparse.Namespace, data_path: str) -> StoreTransfer:
        path = getattr(args, "hidden_states_path", None)
        if not path:
            raise UsageError("the backend `extractor` needs the store's folder; pass it with --hidden-states-path")
        return StoreTransfer(path, data_path)

    @staticmethod
    def build_kv_transfer_config(args: argparse.Namespace) -> dict[str, Any]:
        raise StoreError("the backend `extractor` reads finished stores; vLLM writes one with `extractor extract`")
