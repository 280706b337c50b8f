"""What holds for the repository as a whole: imports, package hosts, command line, README."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from crewai_sidecar.cli import main
from crewai_sidecar.settings import PREFIX, Settings
from tests.policy.package_hosts import HOSTS, files, offences
from tests.policy.settings_table import BEGIN, END, table

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_imports_go_one_way() -> None:
    """Every import contract of pyproject.toml holds, and no module stands outside the layers."""
    command = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("crewai_sidecar.connector", ["litestar", "uvicorn", "crewai", "pydantic", "prometheus_client", "click"]),
        ("crewai_sidecar.cli", ["litestar", "uvicorn", "crewai", "pydantic", "prometheus_client"]),
        ("crewai_sidecar.server", ["crewai", "crewai_sidecar.child"]),
    ],
)
def test_a_part_loads_only_what_it_uses(module: str, absent: list[str]) -> None:
    """A connector runs where no web framework and no crewai is installed; the service process never loads crewai."""
    code = (
        "import importlib, sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if any(name == one or name.startswith(one + '.') for one in {absent!r}):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        f"importlib.import_module({module!r})\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr


def test_no_file_names_a_package_host() -> None:
    """Whoever installs this decides where packages come from."""
    assert offences(files()) == []


@pytest.mark.parametrize("line", [f"see {HOSTS[0]}", "x --index https://packages.example"])
def test_the_search_for_package_hosts_finds_them(line: str, tmp_path: Path) -> None:
    """The check above is not one that finds nothing whatever it reads."""
    file = tmp_path / "some.lock"
    file.write_text(f"fine\n{line}\n")
    assert [offence.split(":")[1] for offence in offences([file])] == ["2"]


def commands(group: click.Group, prefix: str = "") -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
            continue
        words = [
            parameter.opts[0] if isinstance(parameter, click.Option) else parameter.make_metavar(click.Context(command))
            for parameter in command.params
        ]
        yield f"{prefix}{name}: {' '.join(sorted(words))}"


def test_the_surface_of_the_command_line_is_this() -> None:
    """Scripts and manifests name these; a change here is a change for them."""
    client = "--json --token-file --url"
    assert list(commands(main)) == [
        f"archive: {client} --yes ACTION_ID",
        "cancel: --crew --json --reason --token-file --url ACTION_ID",
        "demo: --crash --keep --slow --topic",
        f"drain: {client}",
        "events: --cursor --follow --json --token-file --url ACTION_ID",
        "journal accept-loss: --yes PATH",
        "list: --crew --json --status --to-be-reconciled --token-file --url",
        "serve: ",
        f"show: {client} ACTION_ID",
        "submit: --action-id --detach --input --json --key --operation --timeout-ms --token-file --url CREW",
    ]


def test_the_readme_lists_every_command() -> None:
    """Nobody has to find a command by chance."""
    for command in commands(main):
        assert f"`crewai-sidecar {command.partition(':')[0]}" in README


def test_the_readme_lists_every_setting_as_it_is() -> None:
    """Name, default, bounds and meaning are those of settings.py; `make docs` writes them."""
    assert README.partition(BEGIN)[2].partition(END)[0] == table()


def test_every_setting_has_a_meaning() -> None:
    """A variable without a sentence is not public."""
    empty = [row for row in table().splitlines()[2:] if not row.split("|")[4].strip()]
    assert empty == []


def test_the_readme_names_no_other_variable() -> None:
    """A variable that the README speaks of exists."""
    named = set(re.findall(rf"\b{PREFIX}([A-Z_]+)\b", README))
    assert named <= {name.upper() for name in Settings.model_fields}


def test_every_make_target_of_the_readme_exists() -> None:
    """A command of the README works when it is followed word for word."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)\b", README))
    assert {"demo", "demo-crash", "test", "lint"} <= named <= targets


def test_ci_runs_the_readmes_test_command() -> None:
    """What CI proves is what the README tells a newcomer to run."""
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert script.rstrip().splitlines()[-2:] == ["make lint", "make test"]


def test_every_module_says_what_it_gives_out() -> None:
    """`__all__` is there, names what the module defines or imports, and nothing private."""
    wrong = []
    for path in (ROOT / "service" / "crewai_sidecar").glob("**/*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        public = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ]
        bare = all(isinstance(node, ast.Expr | ast.ImportFrom | ast.If | ast.Assign) for node in tree.body)
        if not public and not bare:
            wrong.append(f"{path.relative_to(ROOT)} has no __all__")
        wrong += [f"{path.relative_to(ROOT)}: {name}" for names in public for name in names if name.startswith("_")]
        wrong += [
            f"{path.relative_to(ROOT)}: {name} is not there"
            for names in public
            for name in set(names) - set(_top_level_names(tree))
        ]
    assert wrong == []


def _top_level_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign():
                yield from (ast.unparse(target) for target in node.targets)
            case ast.AnnAssign():
                yield ast.unparse(node.target)
            case ast.Import() | ast.ImportFrom():
                yield from (alias.asname or alias.name for alias in node.names)


def test_every_lint_exception_gives_its_reason() -> None:
    """`noqa`, and in the service `type: ignore`, name the rule and say why it does not hold here."""
    reason = r"(: [A-Z0-9, ]+|\[[a-z, -]+\])  # \S"
    silent = []
    for folder, marks in (("service", "noqa|type: ignore"), ("tests", "noqa")):
        for path in (ROOT / folder).glob("**/*.py"):
            for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
                if re.search(rf"#\s*({marks})(?!{reason})", line) and path != Path(__file__):
                    silent.append(f"{path.relative_to(ROOT)}:{number}")
    assert silent == []
