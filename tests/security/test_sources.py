# SPDX-License-Identifier: Apache-2.0
"""What no line of ours does: run what it reads, follow links, make files that others can read."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {
    str(path.relative_to(ROOT)): ast.parse(path.read_text())
    for folder in ("tiercache", "cli", "tui")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
#: Modules that make objects, or code, out of bytes.
UNSAFE_MODULES = {
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "pickle",
    "shelve",
    "xmlrpc",
    "yaml",
}
#: Functions that run what they are given, by their last name; ``load`` is torch's and numpy's.
UNSAFE_CALLS = {"__import__", "eval", "exec", "execl", "execv", "mktemp", "popen", "system"}
#: Modules that are imported by a name that is computed: out of tables in those very files.
IMPORTS_BY_NAME = {"cli/lazy.py", "tiercache/replay/registry.py"}
#: Where a link may be followed: by file and function, with the reason in docs/security.md.
FOLLOWED = {
    ("cli/diskcheck.py", "_transfer"),
    ("cli/output.py", "_quiet"),
    ("tiercache/sharing.py", "_map"),
    ("tiercache/tiers/nvme/namespace.py", "_read"),
    ("tiercache/tiers/nvme/namespace.py", "write_whole"),
}


def test_there_are_sources() -> None:
    assert len(SOURCES) > 100


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Every call, with the dotted name of what is called as far as it has one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("name", SOURCES)
def test_nothing_makes_objects_out_of_bytes(name: str) -> None:
    assert not {module.partition(".")[0] for module in imports(SOURCES[name])} & UNSAFE_MODULES


@pytest.mark.parametrize("name", SOURCES)
def test_nothing_runs_what_it_reads(name: str) -> None:
    for called, call in calls(SOURCES[name]):
        assert called.rpartition(".")[2] not in UNSAFE_CALLS, ast.unparse(call)
        assert called not in {"compile", "torch.load", "np.load", "numpy.load"}
        words = {word.arg: word.value for word in call.keywords}
        assert "shell" not in words
        assert "allow_pickle" not in words


def test_modules_are_named_where_they_are_imported() -> None:
    found = {
        name
        for name, tree in SOURCES.items()
        for called, call in calls(tree)
        if called.endswith("import_module") and not isinstance(call.args[0], ast.Constant)
    }
    assert found == IMPORTS_BY_NAME


# --- files


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def assigned(tree: ast.AST) -> dict[str, str]:
    """What names stand for, as far as one assignment says so."""
    return {
        ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target): ast.unparse(
            node.value
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
    }


class Opened(NamedTuple):
    """A call of os.open."""

    file: str
    function: str
    flags: str
    call: ast.Call


@cache
def opened() -> list[Opened]:
    """Every call of os.open, with its flags as far as they are spelled out in its file."""
    found = []
    for name, tree in SOURCES.items():
        for function in functions(tree):
            for called, call in calls(function):
                if called == "os.open":
                    known, flags = assigned(tree) | assigned(function), ast.unparse(call.args[1])
                    for _ in range(2):
                        words = flags.split()
                        flags = " ".join(f"{word} | {known.get(word, '')}" for word in words)
                    found.append(Opened(name, function.name, flags, call))
    return found


def test_no_link_is_followed_where_files_are_opened() -> None:
    follow = {(each.file, each.function) for each in opened() if "NOFOLLOW" not in each.flags}
    assert follow == FOLLOWED


def test_files_are_made_for_their_user_alone() -> None:
    made = [each.call for each in opened() if "O_CREAT" in each.flags]
    assert len(made) >= 5
    for call in made:
        assert ast.unparse(call.args[2]) == "384", ast.unparse(call)  # 0o600


def test_directories_are_made_for_their_user_alone() -> None:
    made = 0
    for name, tree in SOURCES.items():
        for called, call in calls(tree):
            if called.rpartition(".")[2] in {"mkdir", "makedirs"}:
                words = {word.arg: ast.unparse(word.value) for word in call.keywords}
                assert words.get("mode") == "448", (name, ast.unparse(call))  # 0o700
                made += 1
    assert made >= 4


def test_the_cache_writes_files_in_no_other_way() -> None:
    """By a path alone a file is made with what the umask leaves, and a link is followed."""
    for name in (name for name in SOURCES if name.startswith("tiercache/")):
        for called, call in calls(SOURCES[name]):
            last = called.rpartition(".")[2]
            assert last not in {"write_text", "write_bytes"}, (name, ast.unparse(call))
            if last == "open" and not called.startswith(("os.", "lmdb.", "tarfile.")):
                modes = [each.value for each in call.args if isinstance(each, ast.Constant)]
                assert not any(set("wax+") & set(str(mode)) for mode in modes), (name, called)
