"""Every promise has tests, every test that is named exists, and every attack of the catalogue is carried out."""

from __future__ import annotations

import pytest
from tests import requirements

_FOUND = requirements.read_marks()
_PROOFS = requirements.proofs(_FOUND)


def test_every_promise_is_mapped_and_every_mapping_is_a_promise() -> None:
    assert set(requirements.REQUIREMENTS) == requirements.promises()


@pytest.mark.parametrize("claim", sorted(requirements.REQUIREMENTS))
def test_a_promise_has_tests_that_exist(claim: str) -> None:
    assert _PROOFS[claim], f"{claim} is promised in SECURITY.md and proved by no test"
    assert _PROOFS[claim] <= _FOUND.nodes, f"named but not there: {_PROOFS[claim] - _FOUND.nodes}"


def test_every_attack_that_a_promise_names_is_known_and_carried_out() -> None:
    named = {identity for proof in requirements.REQUIREMENTS.values() for identity in proof.attacks.split()}
    assert named <= requirements.catalogue()
    assert {identity for identity in named if not _FOUND.attacks[identity]} <= requirements.NOT_YET


@pytest.mark.parametrize("group", sorted(requirements.ATTACKS))
def test_every_attack_of_the_catalogue_has_a_test(group: str) -> None:
    ids = {f"{group}-{number}" for number in requirements.ATTACKS[group].split()}
    without = {identity for identity in ids if not _FOUND.attacks[identity]}
    assert without <= requirements.NOT_YET


def test_an_attack_of_the_second_siege_is_part_of_a_promise() -> None:
    carried_out = {identity for identity, nodes in _FOUND.attacks.items() if nodes and identity.startswith("S2-")}
    named = {identity for proof in requirements.REQUIREMENTS.values() for identity in proof.attacks.split()}
    assert carried_out <= named, "say in SECURITY.md what holds now, and map the promise to its attacks"


def test_tests_name_only_what_exists() -> None:
    assert set(_FOUND.claims) - requirements.promises() == set()
    assert {identity for identity, nodes in _FOUND.attacks.items() if nodes} <= requirements.catalogue()


def test_the_page_about_the_cage_says_how_each_hole_of_the_second_siege_was_closed() -> None:
    page = (requirements.ROOT / "docs" / "cage.md").read_text()
    assert [number for number in requirements.ATTACKS["S2"].split() if f"S2-{number}" not in page] == []
