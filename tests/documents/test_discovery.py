"""Which files of a folder are read, and what is said of the others."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from desk_rag.config import IndexSettings
from desk_rag.documents.discovery import FoundFile, LeftOut, check_root, examine, walk
from desk_rag.documents.rules.ignore_rules import pattern_of
from desk_rag.errors import ConfigError, UnreadableDocument

SETTINGS = IndexSettings()


def put(root: Path, *names: str, text: str = "words") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def found(root: Path, settings: IndexSettings = SETTINGS) -> list[str]:
    return [item.path.relative_to(root).as_posix() for item in walk(root, settings) if isinstance(item, FoundFile)]


def reasons(root: Path, settings: IndexSettings = SETTINGS) -> dict[str, str]:
    left = (item for item in walk(root, settings) if isinstance(item, LeftOut))
    return {item.path.relative_to(root).as_posix(): item.reason for item in left}


def test_yields_regular_files_in_name_order_with_their_stamp(tmp_path: Path) -> None:
    put(tmp_path, "b.md", "a/z.txt", "a/y.txt", "c/d/e.txt")
    items = list(walk(tmp_path, SETTINGS))
    assert [item.path.relative_to(tmp_path).as_posix() for item in items] == ["b.md", "a/y.txt", "a/z.txt", "c/d/e.txt"]
    stat = (tmp_path / "b.md").stat()
    assert items[0] == FoundFile(tmp_path / "b.md", stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns)


def test_tool_folders_leftovers_and_secrets_are_left_out_with_their_rule(tmp_path: Path) -> None:
    put(
        tmp_path,
        ".git/config",
        "node_modules/x/readme.md",
        "draft.txt~",
        ".env",
        "keys/server.pem",
        "id_rsa.pub",
        "ok.md",
    )
    assert found(tmp_path) == ["ok.md"]
    left_out = reasons(tmp_path)
    assert left_out[".git"] == "default: .git/"
    assert left_out["draft.txt~"] == "default: *~"
    assert left_out[".env"] == "secret: .env"
    assert left_out["keys/server.pem"] == "secret: *.pem"
    assert "id_rsa.pub" in left_out


def test_nested_ignore_files_follow_git(tmp_path: Path) -> None:
    """The very files that git lists as not ignored, in a tree with negation, anchors, nesting and odd patterns."""
    put(
        tmp_path,
        *("a.log", "keep.log", "sub/b.log", "sub/keep.log", "sub/deep/c.log", "top.txt", "sub/top.txt"),
        *(
            "build/out.txt",
            "sub/build/out.txt",
            "sub/buildings.txt",
            "doc/x/y/z.txt",
            "doc/z.txt",
            "space .txt",
            "q1.md",
        ),
        *("!bang.md", "#hash.md", "sub/only.md", "sub/deep/only.md", "[x].md", "x.md"),
    )
    (tmp_path / ".gitignore").write_text(
        "# a comment\n*.log\n!keep.log\n/top.txt\nbuild/\ndoc/**/z.txt\nq[0-9].md\n\\!bang.md\n\\#hash.md\n\\[x\\].md\n"
    )
    (tmp_path / "sub" / ".gitignore").write_text("keep.log\n!b.log\n/only.md\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    command = ["git", "-c", "core.excludesFile=", "ls-files", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    expected = sorted(name for name in listed.stdout.decode().split("\0") if name and not name.endswith(".gitignore"))
    assert sorted(found(tmp_path)) == expected
    assert "sub/b.log" in expected and "sub/keep.log" not in expected


def test_deskragignore_outranks_gitignore_and_exclude_outranks_both(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", "b.txt", "c.txt", "notes.key")
    (tmp_path / ".gitignore").write_text("a.txt\n")
    (tmp_path / ".deskragignore").write_text("!a.txt\nb.txt\n!notes.key\n")
    assert found(tmp_path) == ["a.txt", "c.txt"]
    assert reasons(tmp_path)["b.txt"] == ".deskragignore: b.txt"
    assert reasons(tmp_path)["notes.key"] == "secret: *.key"
    own = IndexSettings(exclude=("c.txt", "!notes.key"))
    assert found(tmp_path, own) == ["a.txt", "notes.key"]
    assert reasons(tmp_path, own)["c.txt"] == "exclude: c.txt"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pattern", ["{root}/private/", "~/docs/private/", "{root}/priv*/", "{link}/private/"])
def test_a_pattern_with_a_path_in_full_is_about_that_path_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    root, link = tmp_path / "docs", tmp_path / "link"
    link.symlink_to(root)
    for folder in ("private", "work/private", "docs/private"):
        (root / folder).mkdir(parents=True)
        (root / folder / "a.txt").write_text("x")
    settings = IndexSettings(exclude=(pattern.format(root=root, link=link),))
    start = link if "{link}" in pattern else root
    left_out = [str(each.path.relative_to(start)) for each in walk(start, settings) if isinstance(each, LeftOut)]
    assert left_out == ["private"]
    assert isinstance(examine(start, start / "private" / "a.txt", settings), LeftOut)
    assert isinstance(examine(start, start / "work" / "private" / "a.txt", settings), FoundFile)


def test_a_pattern_with_a_path_in_full_brings_back_a_secret(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    for place in (tmp_path, tmp_path / "keys"):
        (place / "passwords.txt").write_text("x")
    settings = IndexSettings(exclude=(f"!{tmp_path}/passwords.txt",))
    assert [each.path for each in walk(tmp_path, settings) if isinstance(each, FoundFile)] == [
        tmp_path / "passwords.txt"
    ]


@pytest.mark.parametrize("name", ["a [b] #!?*.txt", "new\nline.txt", "space "])
def test_the_pattern_of_a_path_leaves_out_that_path(tmp_path: Path, name: str) -> None:
    root = tmp_path / "odd [name]"
    root.mkdir()
    (root / name).write_text("x")
    (root / "other.txt").write_text("x")
    settings = IndexSettings(exclude=(pattern_of(root / name, is_folder=False),))
    assert [each.path.name for each in walk(root, settings) if isinstance(each, FoundFile)] == ["other.txt"]


def test_hostile_ignore_files_cost_little_and_are_named(tmp_path: Path) -> None:
    put(tmp_path, "a" * 200 + ".txt", "ok.md", "big/x.md", "odd/y.md")
    (tmp_path / ".deskragignore").write_text("a*a*a*a*a*a*a*a*a*a*b\n" + "(" * 5000 + "\n[z-a\n***\x00\n!\n/\n\\\n")
    (tmp_path / "big" / ".gitignore").write_bytes(b"nothing-*.x\n" * 900_000)
    (tmp_path / "odd" / ".gitignore").write_bytes(b"\xff\xfe\x00*.md\x80\n" + b"\x00" * 1000)
    assert {"ok.md", "big/x.md", "odd/y.md"} <= set(found(tmp_path))
    left_out = reasons(tmp_path)
    assert "not obeyed" in left_out[".deskragignore"]
    assert left_out["big/.gitignore"] == "ignore file obeyed only up to its first 1,000 patterns"


def test_ignore_file_that_is_a_link_or_a_fifo_is_not_read(tmp_path: Path) -> None:
    put(tmp_path, "root/a.md", "elsewhere", text="a.md")
    (tmp_path / "root" / ".gitignore").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "root" / ".deskragignore")
    assert found(tmp_path / "root") == ["a.md"]


def test_links_lead_nowhere_outside_and_never_to_folders(tmp_path: Path) -> None:
    root = tmp_path / "root"
    put(root, "real/a.md", ".env", "plain.md")
    put(tmp_path, "outside.md")
    (root / "loop").symlink_to(root)
    (root / "in.md").symlink_to(root / "real" / "a.md")
    (root / "out.md").symlink_to(tmp_path / "outside.md")
    (root / "sly.md").symlink_to(root / ".env")
    (root / "dangling.md").symlink_to(root / "gone.md")
    assert found(root) == ["in.md", "plain.md", "real/a.md"]
    left_out = reasons(root)
    assert left_out["loop"] == "link to a folder"
    assert left_out["out.md"] == "link to a file outside the folder"
    assert left_out["sly.md"] == "link to .env, left out (secret: .env)"
    assert left_out["dangling.md"] == "link to nothing that is read"


def test_fifo_and_size_limit(tmp_path: Path) -> None:
    put(tmp_path, "small.md")
    for name in ("large.pdf", "log.txt"):  # of plain text the beginning can be read without the end
        (tmp_path / name).write_bytes(b"x" * (1024 * 1024 + 1))
    os.mkfifo(tmp_path / "pipe.md")
    settings = IndexSettings(max_file_mib=1)
    assert found(tmp_path, settings) == ["log.txt", "small.md"]
    assert reasons(tmp_path, settings) == {"large.pdf": "larger than 1 MiB", "pipe.md": "not a regular file"}


def test_odd_names_survive(tmp_path: Path) -> None:
    put(tmp_path, "line\nbreak/in\nname.md", "-rf.md", "$(x).md", "\u202egnp.md")
    raw = os.fsencode(tmp_path) + b"/\xff\xfe.md"
    with open(raw, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write("x")
    paths = [item.path for item in walk(tmp_path, SETTINGS) if isinstance(item, FoundFile)]
    assert len(paths) == 5 and all(path.read_text() for path in paths)
    assert raw in [os.fsencode(path) for path in paths]


def test_rules_hold_below_a_folder_with_a_newline_in_its_name(tmp_path: Path) -> None:
    put(tmp_path, "a\nb/.env", "a\nb/x.log", "a\nb/x.md")
    (tmp_path / ".gitignore").write_text("*.log\n")
    assert found(tmp_path) == ["a\nb/x.md"]


def test_marked_cache_folders_are_left_out_but_not_the_root(tmp_path: Path) -> None:
    put(tmp_path, "cache/x.md", "y.md", "fake/z.md", "fake/CACHEDIR.TAG")
    for place in (tmp_path, tmp_path / "cache"):
        (place / "CACHEDIR.TAG").write_bytes(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    assert "cache/x.md" not in found(tmp_path)
    assert {"y.md", "fake/z.md"} <= set(found(tmp_path))
    assert reasons(tmp_path)["cache"] == "cache folder: CACHEDIR.TAG"


@contextmanager
def ordinary_user() -> Iterator[Path]:
    """A fresh folder, and nobody's rights while it is looked at: to root no folder is closed."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    uid = os.geteuid()
    try:
        yield root
    finally:
        os.seteuid(uid)
        for place in [root, *root.iterdir()]:
            place.chmod(0o700)
        shutil.rmtree(root)


def drop_rights() -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)


def test_refused_folder_is_reported_and_the_rest_goes_on() -> None:
    with ordinary_user() as root:
        put(root, "closed/a.md", "open/b.md")
        (root / "closed").chmod(0)
        drop_rights()
        assert found(root) == ["open/b.md"]
        assert reasons(root) == {"closed": "permission denied"}


def test_folder_that_vanishes_during_the_walk_is_reported(tmp_path: Path) -> None:
    put(tmp_path, "a/x.md", "b/y.md", "c.md")
    items = walk(tmp_path, SETTINGS)
    assert next(items).path.name == "c.md"
    (tmp_path / "a" / "x.md").unlink()
    (tmp_path / "a").rmdir()
    rest = list(items)
    assert [type(item) for item in rest] == [LeftOut, FoundFile]


def test_walk_holds_one_directory_at_a_time(tmp_path: Path) -> None:
    put(tmp_path, *(f"{index:03}/x.md" for index in range(50)))
    items = walk(tmp_path, SETTINGS)
    next(items)
    put(tmp_path, "049/new.md")
    assert any(item.path.name == "new.md" for item in items)


def test_examine_agrees_with_walk(tmp_path: Path) -> None:
    put(tmp_path, "a/b/c.md", "a/b/d.log", ".env", "node_modules/x.md", "a/skip/y.md", "e.md")
    (tmp_path / "a" / ".gitignore").write_text("*.log\nskip/\n")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    walked = {item.path for item in walk(tmp_path, SETTINGS) if isinstance(item, FoundFile)}
    for path in tmp_path.rglob("*"):
        said = examine(tmp_path, path, SETTINGS)
        assert isinstance(said, FoundFile) == (path in walked), path
    assert examine(tmp_path, tmp_path / "link" / "b" / "c.md", SETTINGS) is None
    assert examine(tmp_path, tmp_path / "gone.md", SETTINGS) is None
    assert examine(tmp_path, tmp_path.parent / "other.md", SETTINGS) is None
    assert examine(tmp_path, tmp_path / "a" / "b" / "d.log", SETTINGS) == LeftOut(
        tmp_path / "a" / "b" / "d.log", ".gitignore: *.log"
    )


def test_check_root(tmp_path: Path) -> None:
    check_root(tmp_path)
    put(tmp_path, "file.md")
    with pytest.raises(ConfigError, match="no folder"):
        check_root(tmp_path / "missing")
    with pytest.raises(ConfigError, match="is a file"):
        check_root(tmp_path / "file.md")


def test_check_root_refuses_an_unreadable_folder() -> None:
    with ordinary_user() as root:
        (root / "closed").mkdir(mode=0)
        drop_rights()
        with pytest.raises(UnreadableDocument, match="cannot be listed"):
            check_root(root / "closed")


def test_hidden_files_are_left_out_unless_somebody_wants_them(tmp_path: Path) -> None:
    put(tmp_path, "a.md", ".diary.txt", ".hidden/b.md", "c/.notes/d.md", ".git/e.md")

    def read(settings: IndexSettings) -> set[str]:
        items = walk(tmp_path, settings)
        return {item.path.relative_to(tmp_path).as_posix() for item in items if isinstance(item, FoundFile)}

    assert read(SETTINGS) == {"a.md"}
    reasons = {item.path.name: item.reason for item in walk(tmp_path, SETTINGS) if isinstance(item, LeftOut)}
    assert reasons == {**dict.fromkeys((".diary.txt", ".hidden", ".notes"), "hidden: .*"), ".git": "default: .git/"}
    assert read(IndexSettings(hidden=True)) == {"a.md", ".diary.txt", ".hidden/b.md", "c/.notes/d.md"}
    assert read(IndexSettings(exclude=("!.hidden/",))) == {"a.md", ".hidden/b.md"}
    (tmp_path / ".deskragignore").write_text("!.notes/\n")
    assert read(SETTINGS) == {"a.md", "c/.notes/d.md"}
    assert {item.path.name for item in walk(tmp_path / ".hidden", SETTINGS)} == {"b.md"}, "a hidden folder by name"
