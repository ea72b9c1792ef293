"""Layer ids keep the user's order; wrong ones are refused by name."""

import pytest

from extractor.errors import UsageError
from extractor.layers import resolve_layers


def test_defaults_of_the_reference_model():
    assert resolve_layers("eagle3", 61) == (2, 30, 58)
    assert resolve_layers("eagle3", 61, last=True) == (2, 30, 58, 61)


def test_order_is_kept():
    assert resolve_layers("5,2,10", 12) == (5, 2, 10)
    assert resolve_layers("0,12", 12) == (0, 12)


@pytest.mark.parametrize(
    ("spec", "last", "message"),
    [
        ("1,13", False, r"\[13\].*12 layers"),
        ("-1", False, r"\[-1\]"),
        ("2,2", False, "duplicate"),
        ("12", True, "--last adds 12"),
        ("two", False, "not a list"),
        ("", False, "not a list"),
    ],
)
def test_bad_ids_are_refused(spec, last, message):
    with pytest.raises(UsageError, match=message):
        resolve_layers(spec, 12, last)
