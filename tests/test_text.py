"""Text for the database: no NUL, no lone surrogates, not too much of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redrive.text import clip, storable


def test_nul_and_lone_surrogates_are_replaced_pe_02():
    assert storable("a\0b") == "a\ufffdb"
    assert storable("é\0\ud800😀") == "é\ufffd\ufffd😀"
    assert storable("plain") == "plain"


@given(st.text(st.characters()))
def test_what_is_storable_keeps_its_length_and_is_utf_8_without_nul(text):
    assert len(storable(text)) == len(text)
    assert b"\0" not in storable(text).encode()


@given(st.text(), st.integers(0, 200))
def test_a_clipped_text_is_never_longer_than_asked_pe_05(text, limit):
    assert len(clip(text, limit)) <= limit
    assert clip(text, len(text)) == text


def test_head_and_tail_are_kept_pe_05():
    text = clip("start" + "-" * 10_000 + "end", 100)
    assert (text[:5], text[-3:], len(text)) == ("start", "end", 100)
    assert " more characters ...] " in text
