"""docs/fidelity.md, made from the matrices' results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from architectures import ARCHITECTURES, NUM_LAYERS
from scheduling import SCHEDULING

_HEAD = f"""# Fidelity

Written by `make fidelity`; do not edit. Real vLLM on the CPU, tiny random models of {NUM_LAYERS} layers, every stored
value against transformers: computed in the engine's dtype, and one precision higher. How far a value may lie off is
measured for each token from the distance of these two (`extractor/fidelity.py` says how); no case has a tolerance of
its own.

* **largest error**: absolute, and relative to |x| + the row's median. The step of fp16 itself is 2^-11 = 4.9e-4.
* **over one ulp**: share of values more than one step of the stored dtype from the reference in the engine's dtype.
* **wrong**: values beyond the tolerance. One is a failure.
"""

_CAUSES = """
## Causes found on the way

* **DeepSeek-V2/V3, Kimi (latent attention) on a CPU.** Rows differed from position 1 on. Cause: the CPU kernel for
  rotary embeddings in vLLM 0.32 leaves queries of three dimensions, and keys that are slices, as they are; the model
  ran without positions. A reference without rotary embedding agrees to one rounding. The extractor switches to vLLM's
  PyTorch form of that operation on CPUs; GPUs have another kernel.
* **Gemma-2.** The reference was wrong, not vLLM: transformers' default attention leaves the softcap out. The reference
  uses the eager form for models that have one.
* **Id 0** of DeepSeek-V2/V3 and of models that run through vLLM's Transformers backend made vLLM fail. It is taken from
  the embedding module there.
* **Transformers backend.** A second engine in one process got its layers in the order of the first one's: vLLM notes
  them in a dict of the model's class. The extractor clears it.
* **Nemotron-H.** 5% of the values differed by up to 0.0016 of the row. The reference was wrong again: in float64 its
  Mamba 2 scan lies 1.2e-4 from the recurrence written out, vLLM's CPU kernel 2.5e-7. Cause: transformers 5.19 clips
  time steps at `time_step_min` (0.001), which is about initial weights, and ignores the model's own `time_step_limit`
  ([0, inf]; transformers PR 48989 proposes the same change). The reference and `--engine transformers` heed the limit.
  vLLM has [0, inf] in its code, so a model with other limits is refused; so is the variant with experts,
  which vLLM's CPU build can't run.
* **Kimi-K2.5.** The tiny model did not load because its config had the class name that transformers writes
  (`Kimi_K25ForConditionalGeneration`); vLLM has code under the published one (`KimiK25ForConditionalGeneration`) and
  took the other for a model it does not know. No image processor is needed: the engine is set up for text alone.
* **Qwen3-Next** is refused (`--allow-untested-engine` overrides). vLLM's CPU build has its linear attention in bf16
  alone, and rounds more in it than transformers does: the gate `beta` comes out in bf16, and the kernel's result lies
  0.3% to 0.7% (rms) from the recurrence written out in float64, where rounding the result would be 0.17%. Over a whole
  row this does not show: vLLM's distance from float32 is 0.93 to 1.00 times that of transformers in bf16 (median of
  each layer; three seeds with hidden size 64, two with 256). But ten to twenty values in a million lie beyond the
  tolerance, by up to 1.7 times; with the two exchanged it is a fifth of that. A tolerance wide enough would let wrong
  rows pass; a GPU, which has other kernels, was not at hand.

## Not run on a CPU

* Asynchronous scheduling, CUDA graphs, the V2 model runner, fused norms and all-reduces: vLLM's CPU build has none of
  them (it turns asynchronous scheduling off by itself). `tests/test_handover.py` runs the extractor's side against a
  fake that follows vLLM's source; the canary (`--canary`) and `extractor verify --reference` check it where they exist.
* Prefix caching, pipeline, context and data parallelism inside the engine, speculative decoding, micro-batches: refused
  with the reason (`--engine-args`, tests/test_engine_args.py).
"""


def write_page(file: Path, results: dict[str, Any]) -> None:
    file.parent.mkdir(exist_ok=True)
    first, second = (
        [(name, results[name]) for name in names if name in results] for names in (ARCHITECTURES, SCHEDULING)
    )
    file.write_text(
        _HEAD
        + "\n## Architectures\n\nLayer ids 4, 1, 0, 6 in this order, and 2, 3, 4; samples of 1 to 128 tokens, the "
        "whole context; 64 tokens a step.\n\n"
        + _table("architecture", first)
        + "\n## Scheduling and parallelism\n\nLlama, layer ids 4, 1, 0, 6.\n\n"
        + _table("case", second)
        + _CAUSES
    )


def _table(title: str, rows: list[tuple[str, dict[str, Any]]]) -> str:
    lines = [f"| {title} | state | values | largest error | relative | over one ulp | wrong |", "|" + "---|" * 7]
    lines += [_row(name, result) for name, result in rows]
    return "\n".join(lines) + "\n"


def _row(name: str, result: dict[str, Any]) -> str:
    if "elements" not in result:
        return f"| {name} | refused: {result['reason']} | | | | | |"
    notes = [result["reason"]] if "reason" in result else []
    notes += [f"{result['restarts']} samples restarted"] if result["restarts"] else []
    notes += [f"{result['already']} stored before"] if result["already"] else []
    notes += [f"{result['findings']} findings"] if result["findings"] else []
    state = f"{result['state']} ({', '.join(notes)})" if notes else result["state"]
    return (
        f"| {name} | {state} | {result['elements']:,} | {result['max_abs']:.2g} | {result['max_rel']:.2g} | "
        f"{result['over_one_ulp']:.2%} | {result['beyond']:,} |"
    )
