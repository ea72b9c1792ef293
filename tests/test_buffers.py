"""The loader's memory under the garbage collector, which may free a batch at any line of the pool's own code."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own, since what is tested for is a thread that waits for itself.
COLLECTING = """
import gc, sys
import torch
from extractor.loader import buffers

gc.disable()
gc.freeze()  # only our own garbage is looked at
pool = buffers.BufferPool(keep=1)
collected = 0

def at_each_line(frame, event, argument):
    global collected
    if event == "line" and garbage:
        garbage.pop()
        gc.collect()
        collected += 1
    return at_each_line

def only_in_the_pool(frame, event, argument):
    return at_each_line if frame.f_code.co_filename == buffers.__file__ else None

held = pool.tensor((1000,), torch.float16).fill_(7)
for turn in range(10):
    garbage = []
    for _ in range(20):
        lost = {"batch": pool.tensor((1000,), torch.float16).fill_(turn)}
        lost["itself"] = lost
        garbage.append(lost)
    del lost
    sys.settrace(only_in_the_pool)
    fresh = pool.tensor((1000,), torch.float16)
    sys.settrace(None)
    fresh.fill_(9)
    assert held.eq(7).all(), turn
    assert all(lost["batch"].eq(turn).all() for lost in garbage), turn
    garbage.clear()
    gc.collect()
assert collected >= 50, collected
idle = pool.tensor((1000,), torch.float16)
address = idle.data_ptr()
del idle
assert pool.tensor((1000,), torch.float16).data_ptr() == address
print("went on")
"""
HANGS_S = 600  # the whole script takes seconds


def test_batches_collected_inside_the_pool_do_not_stop_it():
    result = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=HANGS_S)
    assert (result.returncode, result.stdout) == (0, "went on\n"), result.stderr
