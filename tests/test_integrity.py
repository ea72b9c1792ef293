"""verify, repair and compact on stores damaged in known ways."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import warnings

import numpy as np
import pytest
from store_samples import SMALL, a_manifest, assert_same_rows, index_block, rows_of, stats_of, write_samples

from extractor.cli import main
from extractor.compaction import compact
from extractor.errors import CorruptError, StoreError
from extractor.integrity import check_store
from extractor.repair import repair
from extractor.store import ShardWriter, Store, prepare_store


@pytest.fixture(params=["none", "shuffle-zstd"])
def manifest(request):
    return a_manifest(codec=request.param)


@pytest.fixture
def samples(manifest):
    return {f"s{i}": rows_of(i, 20 + 31 * i, manifest) for i in range(6)}


@pytest.fixture
def path(tmp_path, manifest, samples):
    """A store of six samples in two shards."""
    path = prepare_store(tmp_path / "s", manifest).path
    names = list(samples)
    for run, part in enumerate((names[:3], names[3:])):
        write_samples(path, {name: samples[name] for name in part}, run_id=f"r{run}")
    return path


def flip(path, offset, bit=3):
    with path.open("r+b") as handle:
        handle.seek(offset)
        byte = handle.read(1)[0]
        handle.seek(offset)
        handle.write(bytes([byte ^ 1 << bit]))


def place_of(path, name):
    """(data file, Seal, offset of the seal) of a sample."""
    store = Store.open(path)
    row = list(store).index(name)
    shard, offset = store.place(row)
    return path / shard / "data.mdb", store[name].seal, offset


def run(*args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return main([str(arg) for arg in args])


def test_a_sound_store_passes(path, samples, manifest):
    told = []
    report = check_store(path, progress=lambda done, total: told.append((done, total)))
    assert report.ok
    assert report.checked_samples == report.samples == 6
    assert report.tokens == sum(map(len, samples.values()))
    store = Store.open(path)
    assert report.checked_bytes == store.stored_bytes.sum()
    files = sum(shard.file_bytes for shard in store.shards)
    assert told[-1] == (report.checked_bytes + files,) * 2
    assert told == sorted(told)
    quick = check_store(path, quick=True)
    assert quick.ok
    assert quick.checked_samples == 6


def test_a_tree_that_could_not_be_checked_is_not_a_sound_one(path, monkeypatch):
    """As where the checker's process was ended for its memory."""
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], -9, "", ""))
    with pytest.raises(StoreError, match="ended with -9: no output; try again, with fewer --workers"):
        check_store(path)


def test_a_check_that_is_broken_off_begins_no_more_walks(path, manifest, monkeypatch):
    for number in range(6):
        write_samples(path, {f"more-{number}": rows_of(number, 3, manifest)}, run_id=f"run-{number}")
    begun, broken_off = [], threading.Event()

    def walk(command, **_):
        begun.append(command)
        broken_off.wait()
        return subprocess.CompletedProcess([], 0, "", "")

    def stop(done, total):
        threading.Timer(0.1, broken_off.set).start()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", walk)
    with pytest.raises(KeyboardInterrupt):
        check_store(path, workers=1, progress=stop)
    assert len(begun) < len(Store.open(path).shards) == 8


def test_a_check_looks_each_sample_up_by_itself(path, samples, monkeypatch):
    """The arrays over all samples are made afresh at each use: once a sample would be quadratic."""
    store = Store.open(path)
    assert [store.listed(row) for row in range(len(store))] == list(
        zip(store, store.lengths.tolist(), store.stored_bytes.tolist(), strict=True)
    )
    uses = []
    for name in ("lengths", "stored_bytes"):
        made = getattr(Store, name).fget
        monkeypatch.setattr(Store, name, property(lambda self, made=made: uses.append(made) or made(self)))
    check_store(path, quick=True)
    few = len(uses)
    write_samples(path, {f"more{i}": rows_of(i, 3, store.manifest) for i in range(9)})
    check_store(path, quick=True)
    assert len(uses) == 2 * few


@pytest.mark.parametrize("what", ["tile", "seal", "index"])
def test_a_flipped_bit_is_found_repaired_and_redone(path, samples, what):
    file, seal_, seal_offset = place_of(path, "s4")
    offset = int(seal_.tiles[1]["offset"]) + 77 if what == "tile" else seal_offset + 40
    if what == "index":
        offset = index_block(file) + 40
    before = file.read_bytes()
    flip(file, offset)
    report = check_store(path)
    assert not report.ok
    assert {f.sample_id for f in report.findings} == ({"s4"} if what != "index" else {None})
    assert run("verify", path, "--json") == 1
    assert run("verify", path, "--repair") == 3
    store = Store.open(path, check=True)
    wanted = set(samples) - ({"s4"} if what != "index" else set())
    assert set(store) == wanted  # an index block is rebuilt from the seals, so nothing is lost with it
    for name in wanted:
        assert_same_rows(store[name].hidden_states, samples[name])
    assert run("verify", path) == 0
    assert len(before) == file.stat().st_size
    write_samples(path, {name: samples[name] for name in set(samples) - wanted}, run_id="redo")
    assert set(prepare_store(path, store.manifest)) == set(samples)
    assert run("verify", path) == 0


def test_reading_with_check_finds_a_flipped_bit_and_without_does_not(tmp_path):
    manifest = a_manifest()
    path = prepare_store(tmp_path / "s", manifest).path
    write_samples(path, {"a": rows_of(0, 100, manifest)})
    file, seal_, _ = place_of(path, "a")
    flip(file, int(seal_.tiles[1]["offset"]) + 5)
    out = np.empty((1, *manifest.row_shape), np.float16)
    row = int(seal_.tiles[1]["position"])
    Store.open(path)["a"].copy_rows(out, row, row + 1)
    with pytest.raises(CorruptError, match="rows 21 to 41 of sample 'a'.*checksum"):
        Store.open(path, check=True)["a"].copy_rows(out, row, row + 1)
    Store.open(path, check=True)["a"].copy_rows(out, 0, 1)


@pytest.mark.parametrize("keep", [0, 100, 5000, 12288, 0.5, 0.9])
def test_a_truncated_shard_leaves_the_others_readable(path, samples, keep):
    file, _, _ = place_of(path, "s5")
    size = file.stat().st_size
    with file.open("r+b") as handle:
        handle.truncate(int(keep * size) if isinstance(keep, float) else keep)
    with pytest.warns(UserWarning, match="shard-0001"):
        store = Store.open(path)
    assert set(store) == {"s0", "s1", "s2"}
    with pytest.raises(CorruptError, match=f"run `extractor verify {path} --repair`"):
        prepare_store(path, store.manifest)
    assert run("inspect", path, "--json") == 1
    assert run("verify", path) == 1
    assert run("verify", path, "--repair") == 3
    after = Store.open(path, check=True)
    assert {"s0", "s1", "s2"} <= set(after)
    if keep == 0.9:
        assert "s3" in after  # salvaged from what is left
    for name, sample in after.items():
        assert_same_rows(sample.hidden_states, samples[name])
    assert run("verify", path) == 0


def test_a_missing_shard_is_reported_and_can_be_given_up(path, capsys):
    shutil.rmtree(path / "shard-0001")
    assert run("inspect", path) == 1
    assert "shard-0001" in capsys.readouterr().out
    with pytest.raises(StoreError, match="shard-0001 has lost"):
        prepare_store(path, Store.quietly(path).manifest)
    assert run("verify", path, "--repair") == 3
    assert set(prepare_store(path, Store.quietly(path).manifest)) == {"s0", "s1", "s2"}


def test_a_shard_of_another_store_is_refused(path, tmp_path):
    other = prepare_store(tmp_path / "other", a_manifest(samples_hash="else"))
    write_samples(other.path, {"x": rows_of(0, 3, other.manifest)})
    shutil.copytree(other.path / "shard-0000", path / "shard-0002")
    with pytest.raises(StoreError, match="belongs to a store of fingerprint"):
        prepare_store(path, Store.quietly(path).manifest)


def test_wrong_counts_are_found(tmp_path):
    manifest = a_manifest()
    rows = rows_of(0, 30, manifest)
    for name, wrong in (("nan", 1), ("inf", 1), ("saturated", 10_000), ("max_abs", 0.5)):
        path = prepare_store(tmp_path / name, manifest).path
        stats = stats_of(rows)
        stats[name][1] = wrong if name == "max_abs" else stats[name][1] + wrong
        with ShardWriter(path, run_id="r", writer=0, options=SMALL) as writer:
            writer.write_rows("a", 0, rows)
            writer.seal("a", token_ids=np.zeros(30), loss_mask=np.zeros(30), stats=stats)
        assert [f.sample_id for f in check_store(path).findings] == ["a"], name


def test_compact_drops_dead_space_and_keeps_every_sample(path, samples, manifest):
    replaced = [place_of(path, name)[1] for name in ("s1", "s2")]
    pages = sum(-(-(int(size) + 16) // 4096) for old in replaced for size in old.tiles["stored_bytes"])
    write_samples(path, {"s1": samples["s1"], "s2": samples["s2"]}, run_id="again")
    with ShardWriter(path, run_id="dead", writer=0, options=SMALL) as writer:
        writer.write_rows("gone", 0, rows_of(9, 500, manifest))
    states = {shard.name: shard for shard in Store.open(path).shards}
    assert states["shard-0000"].dead_bytes == 4096 * pages
    assert states["shard-0001"].dead_bytes == states["shard-0002"].dead_bytes == 0
    done = compact(path)
    assert (done.rewritten, done.removed) == (["shard-0000"], ["shard-0003"])
    assert done.freed_bytes > 0
    store = prepare_store(path, manifest)
    assert set(store) == set(samples)
    assert sum(shard.dead_bytes for shard in store.shards) == 0
    for name, sample in Store.open(path, check=True).items():
        assert_same_rows(sample.hidden_states, samples[name])
    assert compact(path).rewritten == []
    assert check_store(path).ok


def test_compact_removes_what_a_repair_gave_up(path, samples):
    file, _, _ = place_of(path, "s5")
    with file.open("r+b") as handle:
        handle.truncate(20000)
    repair(path, check_store(path))
    assert file.exists()
    assert run("compact", path, "--json") == 0
    assert not file.exists()
    assert run("verify", path) == 0


def test_repair_and_compact_wait_for_the_writer(path):
    with ShardWriter(path, run_id="busy", writer=0):
        for command in (("compact", path), ("verify", path, "--repair")):
            file, seal_, _ = place_of(path, "s4")
            flip(file, int(seal_.tiles[0]["offset"]) + 9)
            assert run(*command) == 1
            flip(file, int(seal_.tiles[0]["offset"]) + 9)


def test_inspect_shows_store_and_sample(path, samples, capsys):
    assert run("inspect", path, "--json", "--list") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["samples"] == 6
    assert document["dead_bytes"] == 0
    assert document["sample_list"][2] == {"sample_id": "s2", "num_tokens": 82}
    assert document["manifest"]["layer_ids"] == [2, 3, 5]
    assert run("inspect", path, "s2", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["num_tokens"] == len(document["token_ids"]) == 82
    assert [layer["layer_id"] for layer in document["layers"]] == [2, 3, 5]
    assert document["layers"][0]["nan"] == int(stats_of(samples["s2"])["nan"][0])
    assert run("inspect", path) == 0
    assert "shard-0001" in capsys.readouterr().out
    assert run("inspect", path, "s99") == 1
    assert "nearest: 's" in capsys.readouterr().err
    assert run("inspect", path / "nothing") == 1
    assert "does not exist" in capsys.readouterr().err


def test_verify_compares_with_the_reference_it_is_given(path, monkeypatch, capsys):
    from extractor import verify
    from extractor.fidelity import LayerError, Worst

    def fake(store, model, count, **_):
        beyond = int(model.name == "wrong")
        layers = [LayerError(layer_id=2, elements=9, beyond_tolerance=beyond, worst=Worst(sample_id="s3", channel=7))]
        return verify.ReferenceReport(samples=list(store)[:count], layers=layers)

    monkeypatch.setattr(verify, "verify_reference", fake)
    assert run("verify", path, "--reference", "right", "--samples", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["reference"]["samples"] == ["s0", "s1"]
    assert run("verify", path, "--reference", "wrong") == 1
    assert "sample 's3' token 0 channel 7" in capsys.readouterr().out


def record_run(path, name, *, samples, already=0, interrupted=False, **more):
    (path / "runs").mkdir(exist_ok=True)
    record = {"already_stored": already, "samples": samples, "interrupted": interrupted, **more}
    (path / "runs" / f"{name}.json").write_text(json.dumps(record))


def verified(path, capsys, *options):
    capsys.readouterr()
    code = run("verify", path, "--json", *options)
    return code, json.loads(capsys.readouterr().out)


def test_inspect_and_verify_count_what_the_store_holds(path, samples, capsys):
    wanted = {n: sum(int(stats_of(rows)[n].sum()) for rows in samples.values()) for n in ("saturated", "inf", "nan")}
    assert wanted["nan"] > 0
    assert run("inspect", path, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    _, report = verified(path, capsys)
    for name, count in wanted.items():
        assert shown[name] == report[name] == count
    run("inspect", path)
    assert f"{wanted['nan']:,}" in capsys.readouterr().out


def test_inspect_says_that_it_did_not_count(path, capsys, monkeypatch):
    monkeypatch.setattr("extractor.cli.inspect_command.COUNTED_SAMPLES", 5)
    assert run("inspect", path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["nan"] is None
    run("inspect", path)
    assert "not counted" in capsys.readouterr().out
    monkeypatch.undo()
    file, _, seal_offset = place_of(path, "s4")
    flip(file, seal_offset + 40)
    assert run("inspect", path) == 0
    assert "a seal is damaged" in capsys.readouterr().out


def test_whether_all_samples_are_there_is_what_the_runs_tell(path, capsys):
    def told():
        code, document = verified(path, capsys)
        assert code == 0
        return document["complete"], document["expected_samples"]

    assert told() == (None, None)
    record_run(path, "1", samples=3, interrupted=True)
    assert told() == (None, None)  # a later run stored more and left no record
    record_run(path, "2", samples=3, already=3, interrupted=True)
    assert told() == (False, None)
    run("verify", path)
    assert "interrupted at 6 samples" in " ".join(capsys.readouterr().out.split())
    record_run(path, "3", samples=1, already=6)
    assert told() == (False, 7)
    record_run(path, "4", samples=0, already=6)
    assert told() == (True, 6)
    run("inspect", path)
    assert "yes, all 6 samples" in capsys.readouterr().out
    (path / "runs" / "0.json").write_text("{}")
    assert told() == (True, 6)


def test_an_interrupted_run_that_had_all_is_complete(path, capsys):
    """The run after it has nothing to do, and leaves no record that could say so."""
    record_run(path, "1", samples=6, interrupted=True, wanted=6)
    assert (verified(path, capsys)[1]["complete"], verified(path, capsys)[1]["expected_samples"]) == (True, 6)
    record_run(path, "1", samples=6, interrupted=True, wanted=7)
    assert (verified(path, capsys)[1]["complete"], verified(path, capsys)[1]["expected_samples"]) == (False, 7)


@pytest.mark.parametrize(("recorded", "unnamed"), [(True, 3), (False, None)])
def test_a_repair_says_how_many_of_the_lost_have_no_name(path, capsys, recorded, unnamed):
    if recorded:
        record_run(path, "1", samples=3, already=3)
    with (path / "shard-0001" / "data.mdb").open("r+b") as handle:
        handle.truncate(100)
    code, document = verified(path, capsys, "--repair")
    assert code == 3
    assert document["repair"] == {"redo": [], "unnamed": unnamed, "shards": ["shard-0001"], "saved": []}
    assert len(Store.open(path)) == 3


def test_a_repair_tells_people_what_is_redone(path, capsys):
    record_run(path, "1", samples=6)
    (path / "shard-0001" / "data.mdb").unlink()
    assert run("verify", path, "--repair") == 3
    said = capsys.readouterr()
    assert "lost: 3 samples whose names are lost" in said.err
    assert "no, 3 of 6 samples are missing" in " ".join(said.out.split())  # the state after the repair


def test_a_repair_that_saves_all_says_that_nothing_is_lost(path, samples, capsys):
    record_run(path, "1", samples=6)
    flip(file := place_of(path, "s4")[0], index_block(file) + 40)
    assert run("verify", path) == 1
    assert f"`extractor verify {path} --repair` gives up what is damaged" in capsys.readouterr().err
    assert run("verify", path, "--repair") == 3
    said = capsys.readouterr()
    assert "repaired; nothing is lost" in said.err
    assert "yes, all 6 samples" in " ".join(said.out.split())
    assert set(Store.open(path)) == set(samples)
    assert run("verify", path) == 0


def test_a_repair_names_the_lost_of_a_shard_that_can_be_listed(path, capsys):
    file, seal_, _ = place_of(path, "s4")
    flip(file, int(seal_.tiles[0]["offset"]) + 3)
    record_run(path, "1", samples=6)
    _, document = verified(path, capsys, "--repair")
    assert document["repair"]["redo"] == ["s4"]
    assert (document["complete"], document["samples"], document["expected_samples"]) == (False, 5, 6)
    assert document["repair"]["unnamed"] == 0


def test_tables_cut_nothing(tmp_path, capsys, monkeypatch):
    from extractor.cli.store_tables import print_document

    monkeypatch.setenv("COLUMNS", "40")
    path = "/a" + "/long" * 30
    print_document(
        {"store": path, "note": "n" * 90, "seconds": 0.0302, "rows": [{"run_id": "r" * 50, "max_abs": 1 / 3}]}
    )
    printed = capsys.readouterr().out
    assert path in printed
    assert "\u2026" not in printed
    assert (printed.count("n"), printed.count("r")) >= (90, 50)
    assert "0.03 " in printed
    assert "0.3333 " in printed


def test_ids_are_shown_as_they_are(tmp_path, capsys):
    manifest = a_manifest()
    path = prepare_store(tmp_path / "s", manifest).path
    write_samples(path, {"[red]a:smile:": rows_of(0, 2, manifest)})
    assert run("inspect", path, "--list") == 0
    assert "[red]a:smile:" in capsys.readouterr().out
