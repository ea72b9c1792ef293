"""Samples file: values through write and read, and one message per kind of bad file."""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from extractor.errors import InputError, UsageError
from extractor.samples import SamplesFile, write_samples


def _rows(*lengths):
    return [
        {"sample_id": f"s-{i}", "source": "t", "input_ids": list(range(n)), "loss_mask": [i % 2 for i in range(n)]}
        for i, n in enumerate(lengths)
    ]


def test_values_survive(tmp_path):
    path = tmp_path / "samples.parquet"
    write_samples(path, _rows(3, 1, 2))
    file = SamplesFile(path)
    assert file.sample_ids == ["s-0", "s-1", "s-2"]
    assert file.lengths.tolist() == [3, 1, 2]
    assert file.num_tokens == 6
    samples = list(file)
    assert samples[0].token_ids.tolist() == [0, 1, 2]
    assert samples[0].loss_mask.tolist() == [0, 1, 0]
    assert samples[0].token_ids.dtype == np.int32


def test_missing_mask_means_all_trained(tmp_path):
    path = tmp_path / "samples.parquet"
    pq.write_table(pa.table({"sample_id": ["a"], "input_ids": pa.array([[5, 6]], pa.list_(pa.int64()))}), path)
    with pytest.warns(
        UserWarning, match=r"samples.parquet has no column loss_mask, so every token of it is trained on"
    ):
        file = SamplesFile(path)
    assert next(iter(file)).loss_mask.tolist() == [1, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SamplesFile(path)  # once is enough


def test_content_hash_sees_values_only(tmp_path):
    write_samples(tmp_path / "a", _rows(3, 1))
    pq.write_table(pq.read_table(tmp_path / "a"), tmp_path / "b", compression="zstd", row_group_size=1)
    write_samples(tmp_path / "c", _rows(3, 2))
    a, b, c = (SamplesFile(tmp_path / name).content_hash() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"sample_id": [], "input_ids": []}, "no samples"),
        ({"sample_id": ["a"]}, "no column input_ids"),
        ({"sample_id": ["a"], "input_ids": ["text"]}, "type string"),
        ({"sample_id": [1], "input_ids": [[1]]}, "type int64"),
        ({"sample_id": ["a", "a"], "input_ids": [[1], [2]]}, "more than once"),
        ({"sample_id": ["a", "b"], "input_ids": [[1], []]}, "'b'.*no tokens"),
        ({"sample_id": ["a", None], "input_ids": [[1], [2]]}, "row 1.*no sample_id"),
    ],
)
def test_bad_files_are_named(tmp_path, columns, message):
    path = tmp_path / "samples.parquet"
    types = {"sample_id": None, "input_ids": None}
    if columns.get("input_ids") == []:
        types = {"sample_id": pa.string(), "input_ids": pa.list_(pa.int32())}
    pq.write_table(pa.table({name: pa.array(values, types[name]) for name, values in columns.items()}), path)
    with pytest.raises(InputError, match=message):
        SamplesFile(path)


def test_missing_and_foreign_files(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        SamplesFile(tmp_path / "none.parquet")
    (tmp_path / "x.parquet").write_text("hello")
    with pytest.raises(InputError, match="not a readable Parquet"):
        SamplesFile(tmp_path / "x.parquet")
    with pytest.raises(UsageError):
        write_samples(tmp_path / "y", [])


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [([1, None], [1, 1], "null in input_ids"), ([1, 2], [1], "mask of 1"), ([2**40], [1], "does not fit int32")],
)
def test_bad_rows_are_named(tmp_path, ids, mask, message):
    path = tmp_path / "samples.parquet"
    table = {
        "sample_id": ["good", "bad"],
        "input_ids": pa.array([[1], ids], pa.list_(pa.int64())),
        "loss_mask": pa.array([[1], mask], pa.list_(pa.uint8())),
    }
    pq.write_table(pa.table(table), path)
    with pytest.raises(InputError, match=f"'bad'.*{message}"):
        list(SamplesFile(path))


def test_token_outside_vocabulary(tmp_path):
    path = tmp_path / "samples.parquet"
    write_samples(path, _rows(2, 5))
    SamplesFile(path).check_tokens(5)
    with pytest.raises(InputError, match=r"'s-1'.*token id 4 at position 4.*0 to 3"):
        SamplesFile(path).check_tokens(4)


def test_the_folder_that_prepare_wrote_is_as_good_as_the_file(tmp_path):
    with pytest.raises(InputError, match=r"is a folder without samples\.parquet"):
        SamplesFile(tmp_path)
    write_samples(tmp_path / "samples.parquet", [{"sample_id": "a", "input_ids": [1, 2]}])
    assert SamplesFile(tmp_path).path == tmp_path / "samples.parquet"
    assert SamplesFile(tmp_path).content_hash() == SamplesFile(tmp_path / "samples.parquet").content_hash()
