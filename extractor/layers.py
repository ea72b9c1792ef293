"""Layer ids: which residual streams are kept, and in which order.

Layer id k is the residual stream after k decoder layers (the input of layer k): 0 is the embeddings, n is the
output of the last layer before the final norm. vLLM and EAGLE-3 count like this; Hugging Face `hidden_states[k]`
agrees for k < n.
"""

from __future__ import annotations

from extractor.errors import UsageError

CONVENTION = "id k = residual stream after k decoder layers (input of layer k); 0 = embeddings; n = pre-norm output"


def eagle3_layers(num_layers: int) -> tuple[int, int, int]:
    """The EAGLE-3 default (2, n//2, n-3): low, middle and high features."""
    return (2, num_layers // 2, num_layers - 3)


def resolve_layers(spec: str, num_layers: int, last: bool = False) -> tuple[int, ...]:
    """`eagle3` or `2,30,58` -> layer ids in the order given; `last` appends id n.

    Raises UsageError for ids out of [0, n], duplicates, or text that is not a list of integers.
    """
    ids = eagle3_layers(num_layers) if spec == "eagle3" else _parse(spec)
    if last:
        ids = (*ids, num_layers)
    out_of_range = [k for k in ids if not 0 <= k <= num_layers]
    if out_of_range:
        raise UsageError(
            f"layer ids {out_of_range} do not exist in a model of {num_layers} layers; ids 0 (embeddings) to "
            f"{num_layers} (before the final norm) are allowed; pass --layers with ids in that range"
        )
    if len(set(ids)) != len(ids):
        raise UsageError(
            f"layer ids {list(ids)} contain a duplicate; each id may be named once"
            + (f" (--last adds {num_layers})" if last else "")
            + "; remove the repeated id, or name distinct ids with --layers"
        )
    return ids


def _parse(spec: str) -> tuple[int, ...]:
    try:
        ids = tuple(int(part) for part in spec.split(","))
    except ValueError:
        raise UsageError(
            f"--layers {spec!r} is not a list of layer ids; give 'eagle3' or integers such as 2,30,58"
        ) from None
    return ids
