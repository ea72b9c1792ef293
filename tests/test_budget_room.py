"""The disk side of a plan: what a store needs, what lies there, what is superseded, and the verdict."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_cases import OPTIONS, a_manifest, a_store, add, many

from extractor import disk
from extractor.budget.codec_ratio import codec_ratio
from extractor.budget.geometry import Geometry
from extractor.budget.rates import measured
from extractor.budget.room import Job, room_report, store_rows
from extractor.budget.run_records import rate_like
from extractor.budget.stores import INTERRUPTED, find_stores, look_at, nearby_stores, roots_near, superseded
from extractor.budget.verdict import DOES_NOT_FIT, FITS, FITS_AFTER_REMOVING, judge
from extractor.cli import main
from extractor.compaction import compact
from extractor.errors import InputError, StoreError
from extractor.manifest import REMOVING
from extractor.planning import PlanConfig, plan
from extractor.record import STATS
from extractor.samples import SamplesFile, write_samples
from extractor.store import ShardWriter, Store, prepare_store

SIZES = Geometry(hidden_size=16, num_layers=6, layer_ids=(2, 3, 5, 6))  # of store_cases' manifest
ROW_BYTES = 4 * 16 * 2


def space(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    stat = SimpleNamespace(f_frsize=1, f_blocks=10**12, f_bfree=available, f_bavail=available)
    monkeypatch.setattr(disk.os, "statvfs", lambda _: stat)


def lengths_file(path: Path, lengths: dict[str, int]) -> Path:
    path.write_text("".join(json.dumps({"id": name, "seq_len": n}) + "\n" for name, n in lengths.items()))
    return path


def report(out: Path, job: Job, look: Path, sizes: Geometry = SIZES):
    return room_report(out, job, nearby_stores(out, [look]), sizes)


# --- the verdict


@given(st.integers(0, 200), st.integers(0, 100), st.lists(st.integers(1, 40), max_size=6))
def test_the_verdict_is_right_and_removes_as_few_stores_as_possible(need, free, sizes):
    stores = [(f"s{i}", size) for i, size in enumerate(sizes)]
    verdict = judge(need, free, stores)
    freed = sum(dict(stores)[name] for name in verdict.remove)
    if verdict.verdict == FITS:
        assert need <= free
        assert not verdict.remove
    elif verdict.verdict == DOES_NOT_FIT:
        assert verdict.short_bytes == need - free - sum(sizes) > 0
    else:
        assert verdict.verdict == FITS_AFTER_REMOVING
        assert need <= free + freed
        fewer = combinations(sizes, len(verdict.remove) - 1)
        assert all(sum(some) + free < need for some in fewer)


def test_the_smallest_store_that_suffices_is_proposed():
    assert judge(100, 50, [("large", 500), ("right", 50), ("small", 49)]).remove == ("right",)


# --- what a store needs


@pytest.mark.parametrize(("samples", "tokens"), [(1, 10), (300, 100), (20, 5000), (2, 90_000)])
def test_the_need_bounds_a_real_store_closely(tmp_path, samples, tokens):
    """Written with the writer's own tile size; two shards' first pages and trees come on top of a small store."""
    manifest = a_manifest(hidden_size=32)
    prepare_store(tmp_path / "s", manifest)
    rows = np.zeros((tokens, *manifest.row_shape), np.float16)
    with ShardWriter(tmp_path / "s", run_id="r", writer=0) as writer:
        for name in map(str, range(samples)):
            writer.write_rows(name, 0, rows)
            ids = np.zeros(tokens, np.int32)
            writer.seal(name, token_ids=ids, loss_mask=np.ones(tokens, np.uint8), stats=np.zeros(4, STATS))
    size = samples * tokens * manifest.row_bytes
    need = Job(samples=samples, tokens=samples * tokens, size_bytes=size).disk_bytes
    on_disk = sum((shard / "data.mdb").stat().st_size for shard in (tmp_path / "s").glob("shard-*"))
    empty = 2 * (256 << 10)
    assert on_disk <= need + empty
    assert need <= on_disk * 1.001 + samples * 3 * 4096


def test_nothing_needs_nothing():
    assert Job(samples=0, tokens=0, size_bytes=0).disk_bytes == 0


# --- stores that lie there


def test_a_store_is_found_with_what_it_holds_and_occupies(tmp_path):
    lengths = many(30)
    a_store(tmp_path / "deep" / "er" / "store", lengths)
    nearby = find_stores([tmp_path])
    assert nearby.searched_all
    (found,) = nearby.stores
    assert found.path == tmp_path / "deep" / "er" / "store"
    assert (found.samples, found.tokens) == (30, sum(lengths.values()))
    assert found.stored_bytes == found.tokens * ROW_BYTES
    occupied = sum(os.lstat(p).st_blocks * 512 for p in found.path.rglob("*") if p.is_file())
    assert found.disk_bytes == found.freed_bytes == occupied


def test_links_hidden_folders_and_other_manifests_are_passed_over(tmp_path):
    a_store(tmp_path / ".hidden" / "store", {"a": 3})
    (tmp_path / "link").symlink_to(tmp_path / ".hidden", target_is_directory=True)
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text('{"name": "a web page"}')
    assert find_stores([tmp_path]).stores == ()


def test_a_search_that_met_its_limit_says_so(tmp_path):
    for i in range(20):
        (tmp_path / f"d{i}").mkdir()
    assert not find_stores([tmp_path], most_folders=5).searched_all


def test_the_search_starts_near_and_never_at_the_root(tmp_path):
    roots = roots_near(tmp_path / "not" / "there")
    assert roots[0] == tmp_path
    assert Path("/") not in roots


def test_a_folder_to_look_in_must_exist(tmp_path):
    with pytest.raises(InputError, match="--look .*none is no folder"):
        nearby_stores(None, [tmp_path / "none"])


def test_an_out_below_a_file_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="x can't be made, because .*file is a file; pass a folder with --out"):
        nearby_stores(tmp_path / "file" / "x", [])


def reasons(*stores: Path) -> dict[str, str]:
    return {path.name: reason for path, reason in superseded([look_at(path) for path in stores]).items()}


def written(path: Path, seconds: float) -> Path:
    for file in path.rglob("*"):
        os.utime(file, (seconds, seconds))
    return path


def test_older_and_incomplete_stores_of_the_same_samples_are_superseded(tmp_path):
    all_samples = many(9)
    for name, count, seconds in (("old", 9, 1e9), ("new", 9, 1.1e9), ("part", 4, 1.2e9)):
        a_store(tmp_path / name, dict(list(all_samples.items())[:count]))
        written(tmp_path / name, seconds)
    assert reasons(tmp_path / "old", tmp_path / "new", tmp_path / "part") == {
        "old": f"older than {tmp_path / 'new'}, which holds the same samples",
        "part": f"incomplete: 4 samples, {tmp_path / 'new'} has 9",
    }


def test_a_compact_with_nothing_to_do_makes_no_store_newer(tmp_path):
    """It takes the locks, and made the older store's list the newest file: the other one was to be removed."""
    for name, seconds in (("old", 1e9), ("new", 1.1e9)):
        a_store(tmp_path / name, many(9))
        written(tmp_path / name, seconds)
    compact(tmp_path / "old")
    (tmp_path / "old" / ".writer-run-0").touch()
    (tmp_path / "old" / "shards.txt").touch()
    assert reasons(tmp_path / "old", tmp_path / "new") == {
        "old": f"older than {tmp_path / 'new'}, which holds the same samples"
    }


@pytest.mark.parametrize(
    "other",
    [
        {"model_config_hash": "c1"},
        {"samples_hash": "s1"},
        {"dtype": "bfloat16"},
        {"layer_ids": (1, 3, 5, 6)},
        {"options": {"compute_dtype": "float32"}},
    ],
)
def test_a_store_of_something_else_is_not_superseded(tmp_path, other):
    a_store(tmp_path / "old", {"a": 3}, **other)
    a_store(tmp_path / "new", {"a": 3, "b": 4})
    assert reasons(tmp_path / "old", tmp_path / "new") == {}


def test_fewer_layers_of_the_same_samples_are_superseded_but_not_more(tmp_path):
    written(a_store(tmp_path / "three", {"a": 3}, layer_ids=(2, 3, 5)).path, 1e9)
    written(a_store(tmp_path / "four", {"a": 3}).path, 1.1e9)
    assert set(reasons(tmp_path / "three", tmp_path / "four")) == {"three"}
    written(tmp_path / "three", 1.2e9)
    assert reasons(tmp_path / "three", tmp_path / "four") == {}


def test_a_half_removed_store_is_superseded(tmp_path):
    a_store(tmp_path / "s", {"a": 3})
    (tmp_path / "s" / "manifest.json").rename(tmp_path / "s" / REMOVING)
    assert reasons(tmp_path / "s") == {"s": INTERRUPTED}


def test_a_store_that_lost_a_shard_says_so(tmp_path):
    a_store(tmp_path / "s", {"a": 3})
    (tmp_path / "s" / "shard-0000" / "data.mdb").unlink()
    assert "shard-0000 is left out" in look_at(tmp_path / "s").problem


def test_a_damaged_store_supersedes_nothing(tmp_path):
    a_store(tmp_path / "old", {"a": 3})
    a_store(tmp_path / "new", {"a": 3, "b": 4})
    found = [look_at(tmp_path / name) for name in ("old", "new")]
    assert set(superseded(found)) == {tmp_path / "old"}
    assert superseded([found[0], replace(found[1], problem="a shard is lost")]) == {}


def test_the_store_at_out_and_stores_in_use_never_go(tmp_path):
    for name in ("old", "out"):
        a_store(tmp_path / name, {"a": 3})
    written(tmp_path / "out", 1e9)
    stores = find_stores([tmp_path]).stores
    assert [row.path.name for row in store_rows(stores, tmp_path / "out")] == ["old"]
    written(tmp_path / "old", 0.9e9)
    with ShardWriter(tmp_path / "old", run_id="r2", writer=0, options=OPTIONS):
        written(tmp_path / "old", 0.9e9)
        (row,) = store_rows(find_stores([tmp_path]).stores, tmp_path / "out")
        assert row.superseded
        assert f"process {os.getpid()}" in row.in_use
        assert not row.can_go


# --- all of it


def test_removing_a_superseded_store_makes_room(tmp_path, monkeypatch):
    for name, count in (("old", 20), ("new", 40)):
        a_store(tmp_path / name, many(count))
    freed = look_at(tmp_path / "old").freed_bytes
    job = Job(samples=10, tokens=1000, size_bytes=1000 * ROW_BYTES)
    space(monkeypatch, job.disk_bytes - 1)
    result = report(tmp_path / "out", job, tmp_path)
    assert result.verdict.verdict == FITS_AFTER_REMOVING
    assert result.verdict.remove == (str(tmp_path / "old"),)
    space(monkeypatch, job.disk_bytes - freed - 5)
    result = report(tmp_path / "out", job, tmp_path)
    assert (result.verdict.verdict, result.verdict.short_bytes) == (DOES_NOT_FIT, 5)
    space(monkeypatch, job.disk_bytes)
    assert report(tmp_path / "out", job, tmp_path).verdict.verdict == FITS


def test_resuming_needs_only_the_rest(tmp_path):
    lengths = many(40)
    done = dict(list(lengths.items())[:25])
    a_store(tmp_path / "out", done)
    file = lengths_file(tmp_path / "all.jsonl", lengths)
    config = PlanConfig(data=(file,), hidden_size=16, num_layers=6, layers="2,3,5", last=True, out=tmp_path / "out")
    room = plan(replace(config, look=(tmp_path,))).room
    rest = sum(lengths.values()) - sum(done.values())
    assert (room.stored_samples, room.stored_tokens) == (25, sum(done.values()))
    assert room.verdict.need_bytes == Job(samples=15, tokens=rest, size_bytes=rest * ROW_BYTES).disk_bytes


def test_a_store_of_other_layers_at_out_is_refused(tmp_path):
    a_store(tmp_path / "out", {"a": 3})
    with pytest.raises(StoreError, match=r"holds layers \[2, 3, 5, 6\] .* this plan is for layers \[2, 3\]"):
        report(tmp_path / "out", Job(samples=1, tokens=3, size_bytes=9), tmp_path, replace(SIZES, layer_ids=(2, 3)))


def test_a_store_of_other_samples_at_out_is_refused(tmp_path):
    for name in ("one", "other"):
        write_samples(tmp_path / f"{name}.parquet", [{"sample_id": name, "input_ids": [1, 2, 3]}])
    one, other = (SamplesFile(tmp_path / f"{name}.parquet") for name in ("one", "other"))
    a_store(tmp_path / "out", {"one": 3}, samples_hash=one.content_hash())
    config = PlanConfig(data=(one.path,), hidden_size=16, num_layers=6, layers="2,3,5", last=True, out=tmp_path / "out")
    assert plan(config).room.stored_samples == 1
    with pytest.raises(StoreError, match=f"hash {one.content_hash()}, .*other.parquet has {other.content_hash()}"):
        plan(replace(config, data=(other.path,)))
    assert plan(replace(config, data=(other.path,), max_length=2)).room.stored_samples == 1, "no samples file yet"


def test_something_else_at_out_is_refused(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    with pytest.raises(StoreError, match="holds something else"):
        report(tmp_path / "out", Job(samples=1, tokens=3, size_bytes=9), tmp_path)


def test_the_command_lists_stores_and_what_could_go(tmp_path, monkeypatch, capsys):
    for name, count in (("old", 20), ("new", 40)):
        a_store(tmp_path / name, many(count))
    file = lengths_file(tmp_path / "d.jsonl", {"a": 1000})
    arguments = ["plan", str(file), "--hidden-size", "16", "--num-layers", "6", "--layers", "2,3,5"]
    arguments += ["--look", str(tmp_path)]
    space(monkeypatch, 1000 * 96)
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert f"fits after removing {tmp_path / 'old'}" in text
    assert "incomplete: 20 samples" in text
    assert main([*arguments, "--out", str(tmp_path / "out"), "--json"]) == 0
    stores = json.loads(capsys.readouterr().out)["room"]["stores"]
    assert [Path(row["path"]).name for row in stores] == ["new", "old"]
    assert [bool(row["superseded"]) for row in stores] == [False, True]


# --- rates and ratios of past runs


def run_record(store: Path, run_id: str, **fields: object) -> None:
    (store / "runs").mkdir(exist_ok=True)
    record = {
        "run_id": run_id,
        "tokens": 1000,
        "seconds": 10.0,
        "tokens_per_s": 100.0,
        "engine": "vllm",
        "machine": platform.node(),
    }
    (store / "runs" / f"{run_id}.json").write_text(json.dumps({**record, **fields}))


def test_a_stores_runs_give_the_rate_with_its_spread(tmp_path):
    store = a_store(tmp_path / "s", {"a": 3}).path
    for run_id, rate in (("r1", 90.0), ("r2", 100.0), ("r3", 120.0)):
        run_record(store, run_id, tokens_per_s=rate)
    run_record(store, "r4", tokens_per_s=5.0, seconds=0.2)
    run_record(store, "r5", tokens=0, tokens_per_s=0.0)
    (store / "runs" / "r1.findings.jsonl").write_text("{}\n")
    rate = rate_like(store)
    assert (rate.tokens_per_s, rate.slowest_tokens_per_s, rate.fastest_tokens_per_s) == (100.0, 90.0, 120.0)
    assert rate.spread == 0.3
    assert rate.origin == "3 runs of s with vllm on this machine"


def test_a_rate_of_another_machine_says_so(tmp_path):
    store = a_store(tmp_path / "s", {"a": 3}).path
    run_record(store, "r1", machine="gpu-7")
    assert rate_like(store).origin == "1 run of s with vllm on another machine, gpu-7"


@pytest.mark.parametrize(
    ("content", "message"), [(None, "no record of a run"), ("{", "can't be read"), ("{}", "can't be read")]
)
def test_a_store_without_a_usable_record_is_an_error(tmp_path, content, message):
    store = a_store(tmp_path / "s", {"a": 3}).path
    if content is not None:
        (store / "runs").mkdir()
        (store / "runs" / "r.json").write_text(content)
    with pytest.raises(InputError, match=message):
        rate_like(store)


@pytest.mark.parametrize("options", [{}, {"rate": "5"}, {"baseline": "5/1"}])
@pytest.mark.parametrize("sizes", [{}, {"hidden_size": 16, "num_layers": 6}])
def test_a_like_that_is_no_store_is_said(tmp_path, options, sizes):
    file = lengths_file(tmp_path / "d.jsonl", {"a": 3})
    with pytest.raises(StoreError, match="store .*nope does not exist"):
        plan(PlanConfig(data=(file,), like=tmp_path / "nope", layers="2", **options, **sizes))


def test_like_gives_sizes_rate_and_ratio(tmp_path):
    manifest = a_manifest(codec="shuffle-zstd")
    prepare_store(tmp_path / "s", manifest)
    add(tmp_path / "s", {"a": 300, "b": 200}, manifest)
    run_record(tmp_path / "s", "r1", tokens_per_s=50.0)
    ratio = int(Store.open(tmp_path / "s").stored_bytes.sum()) / (500 * manifest.row_bytes)
    file = lengths_file(tmp_path / "d.jsonl", {"a": 1000})
    config = PlanConfig(data=(file,), like=tmp_path / "s", layers="2,3,5", last=True)
    result = plan(config)
    assert result.geometry == SIZES
    assert result.chosen.hours == 1000 / 50 / 3600
    assert result.codec_ratio.ratio == ratio
    assert result.chosen.coded_bytes == round(1000 * ROW_BYTES * ratio)
    assert result.chosen.size_bytes == 1000 * ROW_BYTES
    assert plan(replace(config, rate="25")).chosen.hours == 1000 / 25 / 3600


def test_the_ratio_is_found_near_out_and_decides_the_room_of_a_coded_store(tmp_path, monkeypatch):
    for name, codec in (("coded", "shuffle-zstd"), ("plain", "none")):
        manifest = a_manifest(codec=codec)
        prepare_store(tmp_path / name, manifest)
        add(tmp_path / name, {"a": 300}, manifest)
    nearby = find_stores([tmp_path])
    assert codec_ratio(None, nearby.stores, SIZES).origin == tmp_path / "coded"
    assert codec_ratio(None, nearby.stores, replace(SIZES, hidden_size=17)) is None
    file = lengths_file(tmp_path / "d.jsonl", {"a": 1000})
    config = PlanConfig(
        data=(file,), hidden_size=16, num_layers=6, layers="2,3,5", out=tmp_path / "out", look=(tmp_path,)
    )
    coded = plan(replace(config, codec="shuffle-zstd"))
    assert coded.room.verdict.need_bytes == Job(samples=1, tokens=1000, size_bytes=coded.chosen.coded_bytes).disk_bytes
    plain = plan(config)
    assert plain.room.verdict.need_bytes == Job(samples=1, tokens=1000, size_bytes=96_000).disk_bytes


def test_a_codec_without_a_measured_ratio_is_noted(tmp_path):
    file = lengths_file(tmp_path / "d.jsonl", {"a": 1000})
    result = plan(PlanConfig(data=(file,), hidden_size=16, num_layers=6, layers="2,3,5", codec="shuffle-zstd"))
    assert result.codec_ratio is None
    assert "no store with codec shuffle-zstd was found" in result.notes[0]


def test_one_run_has_no_spread():
    assert measured([5.0], "x").spread == 0.0
