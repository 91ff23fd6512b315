"""`sandbox.install(manager="npm")`, from a registry on loopback with packages made by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.sandbox.package_servers import Registry, tarball

from warmcell import InvalidRequest, Limits, ProvisionFailed, Sandbox
from warmcell.net.rules.package_index import parse_npm_config
from warmcell.policy.model import NetworkRule
from warmcell.sandbox.local.npm_packages import check_npm_names

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces"), pytest.mark.needs("npm")]


USE = "console.log(require('fruit').word)"


@pytest.mark.attack("LK-05")
def test_packages_for_runs_sessions_and_the_next_sandbox(registry: Registry, tmp_path: Path) -> None:
    with Sandbox() as first:
        first.install("fruit@^1.0.0", manager="npm")
        assert first.run(USE, "javascript").stdout == "fruit with seeds\n"
        assert first.run("import fruit from 'fruit'; console.log(fruit.word)", "js").stdout == "fruit with seeds\n"
        assert not first.sh("echo 1 > /node_modules/fruit/index.js").ok
        assert first.sh("find / -name ran -not -path '/proc/*' 2>/dev/null").stdout == "", "a package's script has run"
        registry.publish("stone", "exports.word = 'stone'")
        first.install("stone", manager="npm")
        assert first.run("console.log(require('stone').word, require('fruit').word)", "js").stdout == (
            "stone fruit with seeds\n"
        )
        with first.session("javascript") as session:
            assert session.run("require('fruit').word").value == "'fruit with seeds'"
    registry.asked.clear()
    for file in (tmp_path / "cache/warmcell/packages").rglob("*"):
        if (
            file.is_file()
            and "content-v2" in str(file)
            and registry.tarballs["/files/fruit-1.0.0.tgz"] == file.read_bytes()
        ):
            forged = tarball({"name": "fruit", "version": "1.0.0"}, "exports.word = 'poisoned'")
            file.chmod(0o644)
            file.write_bytes(forged)  # somebody with the rights of the user has been there
    with Sandbox() as second:
        second.install("fruit", manager="npm")
        assert second.run(USE, "javascript").stdout == "fruit with seeds\n"
    assert "/files/@garden-seeds-1.0.0.tgz" not in registry.asked, "what is kept is used"


def test_a_failed_install_changes_nothing(registry: Registry) -> None:
    registry.publish("large", "", extra=os.urandom(3 << 20))
    with Sandbox(limits=Limits(disk_mb=2)) as sandbox:
        with pytest.raises(ProvisionFailed, match="nowhere"):
            sandbox.install("nowhere", manager="npm")
        with pytest.raises(ProvisionFailed, match="disk limit of 2 MB"):
            sandbox.install("large", manager="npm")
        assert sandbox.sh("ls -d /packages /node_modules").stdout == ""


@pytest.mark.parametrize(
    "name",
    ["", "-g", "../up", "git+https://x/y", "http://x/y.tgz", "a@file:../b", "a@npm:b", "a@.", "a b", "a@x/y", "@a"],
)
def test_other_npm_arguments_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_npm_names([name])


def test_names_with_versions_are_accepted() -> None:
    names = ("lodash", "lodash@4", "lodash@^4.17.0", "@types/node@>=20 <22", "react@next", "a.b-c@1.x")
    assert check_npm_names(names) == names


def test_an_unknown_manager_is_refused() -> None:
    with Sandbox() as sandbox, pytest.raises(InvalidRequest, match="pip, npm"):
        sandbox.install("fruit", manager="yarn")


def test_registry_credentials_go_only_to_the_registry(tmp_path: Path) -> None:
    (tmp_path / "npmrc").write_text("//one.example/:_authToken=secret\n//other.example/:_authToken=other\n")
    said = {"registry": "https://one.example/", "@us:registry": "http://two.example:8080/", "cafile": None}
    found = parse_npm_config(json.dumps({**said, "strict-ssl": True, "userconfig": str(tmp_path / "npmrc")}))
    assert found.rules() == (NetworkRule("one.example", (443,)), NetworkRule("two.example", (8080,)))
    assert "//one.example/:_authToken=secret" in found.settings()
    assert "other" not in found.settings()
    assert "@us:registry=http://two.example:8080/" in found.settings()
