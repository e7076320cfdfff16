"""Lists in pages, and the filter for metadata."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import ConfigError
from agentenv.server.control.pages import metadata_filter, page

Items = st.lists(st.tuples(st.floats(0, 2e9), st.text("abc", min_size=1, max_size=3)), unique=True, max_size=30)


@given(items=Items, limit=st.integers(1, 7), descending=st.booleans())
def test_the_pages_together_are_all_items_in_order(items: list[tuple[float, str]], limit: int, descending: bool) -> None:
    seen: list[tuple[float, str]] = []
    token: str | None = None
    while True:
        found, token = page(items, lambda item: item, token=token, limit=limit, descending=descending)
        assert len(found) <= limit
        seen += found
        if token is None:
            break
    assert seen == sorted(items, reverse=descending)


@given(st.text())
def test_what_is_no_token_is_refused_or_gives_a_page(token: str) -> None:
    with suppress(ConfigError):
        found, _ = page([(1.0, "a")], lambda item: item, token=token, limit=5, descending=True)
        assert found in ([], [(1.0, "a")])


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=5))
def test_the_filter_is_what_the_sdk_has_encoded(metadata: dict[str, str]) -> None:
    encoded = urlencode({quote(key): quote(value) for key, value in metadata.items()})
    assert metadata_filter(encoded) == metadata


def test_a_filter_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="no filter"):
        metadata_filter("just-a-word")
