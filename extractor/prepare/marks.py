"""Where the fields of an answer went in the rendered text.

The answer is rendered a second time with marks (private-use characters) around its fields: the template itself says
where they went, whatever it does around them. Without the marks the two renderings must be equal.
"""

from __future__ import annotations

from collections.abc import Callable

from extractor.prepare.reject import Reject

Wrap = Callable[[str, str], str]  # (field, text) -> the text with marks around it
Spans = dict[str, tuple[int, int]]  # field -> (start, end), in characters of the rendered text
_BLOCKS = (0xE000, 0xF0000, 0x100000)  # private-use areas; the first whose four marks the text does not hold is used


def find_fields(text: str, wanted: set[str], render_marked: Callable[[Wrap], str]) -> Spans:
    """The places of the `wanted` fields ("thinking", "response") in `text`, thinking only if the template shows it.
    Marks stand outside a field's blanks, or inside where the template trims the field. Raises Reject when the response
    is not found."""
    for trim in (False, True):
        wrap, marks = _marker(text, trim)
        marked = render_marked(wrap)
        if marked.translate(dict.fromkeys(map(ord, marks))) == text:
            spans = _spans(marked, marks)
            if spans.keys() | {"thinking"} >= wanted:
                return spans
    raise Reject("text_lost", "the chat template hides or rewrites a part of the answer, so its place can't be told")


def _marker(text: str, trim: bool) -> tuple[Wrap, str]:
    block = next((b for b in _BLOCKS if not any(chr(b + i) in text for i in range(4))), None)
    if block is None:
        raise Reject("text_lost", "the text uses every private-use character with which parts are marked")
    marks = "".join(chr(block + i) for i in range(4))
    pairs = {"thinking": marks[:2], "response": marks[2:]}

    def wrap(name: str, text: str) -> str:
        core = text.strip() if trim else text
        if not text.strip():
            return text
        at = text.index(core)
        return text[:at] + pairs[name][0] + core + pairs[name][1] + text[at + len(core) :]

    return wrap, marks


def _spans(marked: str, marks: str) -> Spans:
    """Fields by the places of their marks, counted without the marks; none when marks are doubled or out of order."""
    places = [(mark, marked.find(mark)) for mark in marks if mark in marked]
    order = [place for _, place in places]
    if order != sorted(order) or len(places) != sum(marked.count(mark) for mark in marks):
        return {}
    bare = {mark: place - i for i, (mark, place) in enumerate(places)}
    pairs = {"thinking": (marks[0], marks[1]), "response": (marks[2], marks[3])}
    return {name: (bare[a], bare[b]) for name, (a, b) in pairs.items() if a in bare and b in bare}
