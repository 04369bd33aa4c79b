"""The pages that name tests: each of those exists. Here together, since pytest takes its time to collect them."""

import pytest

from tests.acceptance.references import PAGES, missing, referenced


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page: str) -> None:
    assert len(referenced(page)) > 50
    assert missing(page) == []
