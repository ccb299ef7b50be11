"""The files page: only what lies below its folder, whatever is asked for."""

import json
import os
import pickle
import shutil
import threading
import unicodedata
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import standfast
from standfast import Store
from standfast.errors import BadOption, MissingFile, StandfastError
from standfast.web.files import OutsideRoot, look, opened, resolve
from tests.amr.saved_states import refined, save
from tests.kit.cli import call, flip
from tests.packages.saved_packages import make_package

SECRET = "no one should read this"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with files, and secrets around it and hidden in it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.json").write_text(SECRET)
    standfast.save(outside / "secret.safetensors", {SECRET: np.zeros(3)})
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    standfast.save(root / "a" / "w.safetensors", {"w": np.arange(6.0)}, {"epoch": 3})
    (root / "a" / "b" / "text.txt").write_text("words")
    (root / ".hidden").mkdir()
    (root / ".hidden" / "secret.json").write_text(SECRET)
    return root


def test_a_path_that_no_listing_gives_is_refused(root):
    for path in (
        *("..", "../outside/secret.json", "a/../../outside/secret.json", "a/..", "./a", "a/./b"),
        *("/etc/passwd", "//etc/passwd", "/", "a//b", "a/", "/a", ".\\a", ".hidden", "a/.hidden"),
        *("..\\outside\\secret.json", ".hidden/secret.json", "...", "....//outside", "\ud800"),
        *("\0", "a\0/../outside", "a/w.safetensors\0.txt", "~\0", "a/" + "b/" * 3000 + "c"),
    ):
        with pytest.raises(OutsideRoot) as caught:
            look(root, path)
        assert SECRET not in str(caught.value)
        assert str(caught.value).isprintable()
    for path in (  # other names are just not there
        *("nothing", "a/nothing", "a/w.safetensors/more", "%2foutside%2fsecret.json", "x" * 300),
        *("%2e%2e/outside", "a\\..\\..\\outside", "\uff0e\uff0e/outside", "\u2025/outside"),
        *("a\u2044b", "~root", "C:\\Windows", "file:///etc/passwd", "<script>alert(1)</script>"),
    ):
        with pytest.raises((MissingFile, OutsideRoot)):
            look(root, path)


NAMES = ["..", ".", "", "a", "b", "outside", "root", "secret.json", "/", "\\", "in", "%2e"]


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(NAMES) | st.text(max_size=4), max_size=6))
def test_no_path_leads_out(root, parts):
    try:
        found = resolve(root, "/".join(parts))
    except StandfastError:
        return
    assert found == root or root in found.parents
    assert os.path.realpath(found) == str(found)


def test_a_path_below_the_root_is_found_through_links_too(root, tmp_path):
    assert resolve(root, "a/w.safetensors") == root / "a" / "w.safetensors"
    assert resolve(root, "") == root
    name = unicodedata.normalize("NFD", "é…") + "\u202e<b>.txt"
    (root / name).write_text("")
    assert resolve(root, name) == root / name
    (tmp_path / "way").symlink_to(root)
    assert resolve(tmp_path / "way", "a/w.safetensors") == root / "a" / "w.safetensors"
    (root / "in").symlink_to("a/b")
    (root / "file").symlink_to(root / "a" / "w.safetensors")
    assert resolve(root, "in/text.txt") == root / "a" / "b" / "text.txt"
    assert look(root, "file")["format"] == "safetensors"


@pytest.mark.parametrize(
    "target", ["../outside", "../root2", "/etc", "..", ".hidden", "a/../../outside", "round"]
)
def test_links_that_lead_elsewhere_are_refused_and_not_listed(root, target):
    shutil.copytree(root.parent / "outside", root.parent / "root2")
    (root / "round").symlink_to("round2")
    (root / "round2").symlink_to("round")
    (root / "way").symlink_to(target)
    for path in ("way", "way/secret.json"):
        with pytest.raises((OutsideRoot, MissingFile)):
            resolve(root, path)
    found = look(root, "")
    assert [each["name"] for each in found["folders"]] == ["a"]
    assert found["files"] == []


def test_pipes_and_devices_are_refused_and_not_waited_for(root):
    os.mkfifo(root / "pipe")
    with pytest.raises(OutsideRoot):
        look(root, "pipe")
    found = look(root, "")
    assert found["files"] == []
    assert found["left_out"] == 2  # and what is hidden


@pytest.mark.parametrize("opening", range(1, 7))
def test_what_becomes_a_link_before_it_is_opened_is_refused(root, seams, opening):
    wanted = root / "a" / "secret.safetensors"
    standfast.save(wanted, {"harmless": np.zeros(3)})
    openings = iter(range(1, opening + 1))

    def late(open: Any, *given: Any, **options: Any) -> int:
        if next(openings, 0) == opening:
            exchanged = wanted.parent if opening % 2 else wanted
            exchanged.rename(root / "moved")
            target = root.parent / "outside"
            exchanged.symlink_to(target if opening % 2 else target / wanted.name)
        return open(*given, **options)

    seams.system(os, open=late)
    with suppress(OutsideRoot, MissingFile):
        assert SECRET not in json.dumps(look(root, "a/secret.safetensors"))


@pytest.mark.long
def test_whoever_swaps_folders_all_the_time_gains_nothing(root):
    standfast.save(root / "a" / "secret.safetensors", {"harmless": np.zeros(3)})
    (root / "link").symlink_to(root.parent / "outside")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(root / "a", root / "aside")
            os.rename(root / "link", root / "a")
            os.rename(root / "a", root / "link")
            os.rename(root / "aside", root / "a")

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(400):
            with suppress(OutsideRoot, MissingFile):
                assert SECRET not in json.dumps(look(root, "a/secret.safetensors"))
    finally:
        stop.set()
        swapping.join()
    assert look(root, "a/secret.safetensors")["tensors"][0]["name"] == "harmless"


def test_a_folder_lists_its_folders_and_files_by_name(root):
    make_package(root / "model")
    Store(root / "shop").run("a").save(1, {"w": np.zeros(3)})
    (root / "z.txt").write_text("words")
    (root / "odd").write_bytes((root / "a" / "w.safetensors").read_bytes())
    (root / "cut.pt").write_bytes(b"")
    with (root / "huge.safetensors").open("wb") as file:
        file.truncate(1 << 40)  # a hole, which takes no disk: only the heads of files are read
    found = look(root, "")
    assert found["path"] == ""
    kinds = {"a": "folder", "model": "package", "shop": "store"}
    assert found["folders"] == [{"name": name, "kind": kinds[name]} for name in kinds]
    formats = [(each["name"], each["format"], each["bytes"]) for each in found["files"]]
    assert formats == [
        ("cut.pt", "torch", 0),
        ("huge.safetensors", "safetensors", 1 << 40),
        ("odd", "safetensors", (root / "odd").stat().st_size),
        ("z.txt", None, 5),
    ]
    assert found["files"][-1]["time"].endswith("+00:00")
    assert (found["total"], found["pages"], found["left_out"]) == (7, 1, 1)


def test_hostile_names_come_as_they_are_and_those_that_are_no_text_do_not(root):
    names = ["<img src=x onerror=alert(1)>", "\u202egnp.exe", "tab\there", "new\nline", "'\"`"]
    for name in names:
        (root / name).write_text("")
    before = look(root, "")["left_out"]
    Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe.txt")).write_text("")
    found = look(root, "")
    assert sorted(each["name"] for each in found["files"]) == sorted(names)
    assert found["left_out"] == before + 1
    json.dumps(found, ensure_ascii=False).encode()


def test_a_huge_folder_comes_page_by_page(root):
    for number in range(1, 120):
        (root / f"f{number:03}.txt").write_text("")
    pages = [look(root, "", page, 50) for page in (1, 2, 3, 4)]
    assert [len(page["folders"]) + len(page["files"]) for page in pages] == [50, 50, 20, 0]
    names = [each["name"] for page in pages for each in page["files"]]
    assert names == sorted(set(names))
    assert len(names) == 119
    assert {(page["total"], page["pages"], page["per_page"]) for page in pages} == {(120, 3, 50)}
    for page, per_page in ((0, 50), (-1, 50), (1, 0), (1, 201)):
        with pytest.raises(BadOption):
            look(root, "", page, per_page)


def test_a_folder_that_cannot_be_listed_is_a_folder(root):
    (root / "locked").mkdir(mode=0)
    try:
        kinds = {each["name"]: each["kind"] for each in look(root, "")["folders"]}
    finally:
        (root / "locked").chmod(0o700)
    assert kinds["locked"] == "folder"


def test_files_and_packages_are_told_as_on_the_command_line(root):
    found = look(root, "a/w.safetensors")
    shown = call("show", "--json", root / "a" / "w.safetensors").json
    assert found.pop("time").endswith("+00:00")
    assert found == {**shown, "path": "a/w.safetensors"}
    save(root / "t.sunc", refined())
    shown = call("show", "--json", root / "t.sunc").json
    assert json.loads(json.dumps(look(root, "t.sunc")["tree"])) == shown["tree"]
    package = make_package(root / "model")
    found = look(root, "model")
    assert found["sizes"] == {name: (package / name).stat().st_size for name in found["files"]}
    shown = call("show", "--json", package).json
    assert found == {**shown, "kind": "package", "path": "model"}
    (package / "tokenizer.json").unlink()
    found = look(root, "model")
    assert (found["integrity"], bool(found["problem"])) == ("broken", True)
    assert found["sizes"].get("tokenizer.json") is None
    assert str(root) not in json.dumps(found)
    (package / "config.json").unlink()
    (package / "config.json").symlink_to(root.parent / "outside" / "secret.json")
    with pytest.raises(OutsideRoot) as caught:
        look(root, "model")
    assert SECRET not in str(caught.value)


class Evil:
    """What would leave a folder behind if it were loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_no_code_in_a_torch_file_is_run(root):
    evil = Evil(root / "run")
    torch.save({"w": torch.zeros(2, 3), "evil": evil}, root / "evil.pt")
    found = look(root, "evil.pt")
    assert found.get("error") or "evil" in found["left_out"]
    torch.save({"w": torch.zeros(2, 3), "path": Path("x")}, root / "mixed.pt")
    found = look(root, "mixed.pt")
    assert [each["name"] for each in found["tensors"]] == ["w"]
    assert "path" in found["left_out"]
    (root / "plain.pt").write_bytes(pickle.dumps(evil))
    assert look(root, "plain.pt")["error"]
    assert not (root / "run").exists()


def test_a_damaged_file_and_one_of_no_format_are_told_with_their_error(root):
    path = root / "a" / "w.safetensors"
    flip(path, 3)
    for name, format, nbytes in (
        ("a/w.safetensors", "safetensors", path.stat().st_size),
        ("a/b/text.txt", None, 5),
    ):
        found = look(root, name)
        assert (found["format"], found["bytes"]) == (format, nbytes)
        assert str(root) not in json.dumps(found)
        assert found["error"]["message"]
    assert found["error"]["kind"] == "UnknownFormat"


def test_an_opened_file_gives_its_tensors(root):
    with opened(root, "a/w.safetensors") as file:
        assert file["w"].tolist() == list(range(6))
    for path in ("../outside/secret.safetensors", "a"):
        with pytest.raises(StandfastError), opened(root, path):
            pass
