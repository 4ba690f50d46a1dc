"""The suite can fail: faults put into the sources are found. mutants.py has more of them."""

import pytest

from tests.plugins.conftest import skip_without_tools
from tests.plugins.mutants import IN_EVERY_RUN, MUTANTS, Mutant, fails_the_suite


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if mutant.name in IN_EVERY_RUN], ids=lambda m: m.name
)
def test_a_fault_in_the_sources_makes_the_suite_fail(mutant: Mutant) -> None:
    skip_without_tools()
    is_caught, output = fails_the_suite(mutant)
    assert is_caught, output


def test_every_mutant_names_text_that_occurs_once() -> None:
    from tests.plugins.host_library import REPOSITORY

    for mutant in MUTANTS:
        text = (REPOSITORY / "plugins" / mutant.path).read_text()
        assert text.count(mutant.old) == 1, mutant.name
