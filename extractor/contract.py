"""What trainers expect of a store: which slots a row has, and in which order."""

from __future__ import annotations

from extractor.errors import StoreError
from extractor.manifest import Manifest


def require_last(manifest: Manifest, reader: str) -> None:
    """Raise StoreError unless a row's last slot is layer id n, the target model's output before its final norm.

    EAGLE-3 trainers compute their targets from it: lm_head(norm(last)). `reader` names who needs it.
    """
    last, needed = manifest.layer_ids[-1], manifest.num_layers
    if last == needed:
        return
    ids = [k for k in manifest.layer_ids if k != needed]
    raise StoreError(
        f"{reader} needs layer id {needed} (the last layer's output before the final norm) in a row's last slot, to "
        f"compute the target model's distribution; this store holds ids {list(manifest.layer_ids)}; extract once more "
        f"with `extractor extract ... --layers {','.join(map(str, ids))} --last --out OTHER_STORE`"
    )
